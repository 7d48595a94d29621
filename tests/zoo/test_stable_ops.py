"""Softmax and cross entropy where the naive formulas break, and autocast's rules."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.ops.autocast_rules import add_and_matmul
from zoo.ops.cross_entropy import softmax_cross_entropy
from zoo.ops.softmax import softmax


def test_softmax_of_1000_is_one():
    assert softmax(torch.tensor([1000.0, 0.0])).tolist() == [1, 0]
    assert softmax(torch.tensor([12.0, 0.0], dtype=torch.float16)).isfinite().all()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_agrees_with_torch_along_any_dim(dim):
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(softmax(x, dim), F.softmax(x, dim))


def test_softmax_shift_leaves_no_trace_in_the_gradient():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, (x,))
    assert torch.autograd.gradgradcheck(softmax, (x,))


def test_softmax_wants_floating_numbers():
    with pytest.raises(TypeError, match=r"softmax: x must have a floating dtype, got torch\.int64"):
        softmax(torch.arange(3))


def test_cross_entropy_of_1000_is_500():
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = softmax_cross_entropy(logits, torch.tensor([[0.5, 0.5]]))
    assert loss.tolist() == [500]
    loss.sum().backward()
    assert logits.grad.tolist() == [[0.5, -0.5]]


def test_cross_entropy_shifts_each_row_by_its_own_maximum():
    logits = torch.tensor([[1000.0, 0.0], [0.0, -1.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    expected = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(softmax_cross_entropy(logits, labels), expected)


def test_cross_entropy_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"logits must have shape \(batch, classes\), got \[3\]"):
        softmax_cross_entropy(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"\[2, 3\], got \[2, 1\]"):
        softmax_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(TypeError, match=r"float32 and torch\.int64"):
        softmax_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [torch.float32, torch.float16])
def test_autocast_lowers_the_product_but_not_the_sum(low, first):
    x, y = torch.randn(4, 4).to(first), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=low):
        total, product = add_and_matmul(x, y)
    assert (total.dtype, product.dtype) == (torch.float32, low)


def test_mixed_dtypes_need_autocast():
    with pytest.raises(RuntimeError, match="same dtype"):
        add_and_matmul(torch.ones(2, 2).half(), torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"want two \(n, n\) matrices, got \[2, 3\]"):
        add_and_matmul(torch.ones(2, 3), torch.ones(2, 3))

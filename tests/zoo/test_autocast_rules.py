"""The dtypes of an add and a matrix product under autocast."""

import pytest
import torch

from zoo.ops.autocast_rules import add_and_matmul


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [torch.float32, torch.float16])
def test_autocast_lowers_the_product_but_not_the_sum(low, first):
    x, y = torch.randn(4, 4).to(first), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=low):
        total, product = add_and_matmul(x, y)
    assert (total.dtype, product.dtype) == (torch.float32, low)


def test_the_sum_of_two_halves_stays_half():
    with torch.autocast("cpu", dtype=torch.float16):
        total, product = add_and_matmul(torch.eye(2).half(), torch.eye(2).half())
    assert total.dtype == product.dtype == torch.float16


def test_mixed_dtypes_need_autocast():
    with pytest.raises(RuntimeError, match="same dtype"):
        add_and_matmul(torch.ones(2, 2).half(), torch.ones(2, 2))


def test_misfits_are_named():
    with pytest.raises(ValueError, match=r"add_and_matmul: x must have shape \(n, n\), got \[2, 3\]"):
        add_and_matmul(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"add_and_matmul: y must have a floating dtype, got torch\.int64"):
        add_and_matmul(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int64))

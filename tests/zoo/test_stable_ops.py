"""Softmax and cross entropy, and the limits of their naive forms."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.ops.cross_entropy import (
    SPEC,
    softmax_cross_entropy,
    softmax_cross_entropy_naive,
    softmax_cross_entropy_native,
)
from zoo.ops.softmax import softmax, softmax_naive

ENTROPIES = (softmax_cross_entropy, softmax_cross_entropy_naive, softmax_cross_entropy_native)
LARGEST_SAFE = [
    (torch.float16, 11.0859375, 11.09375),
    (torch.bfloat16, 88.5, 89.0),
    (torch.float32, 88.72283172607422, 88.72283935546875),
    (torch.float64, 709.782712893384, 709.7827128933841),
]


def test_softmax_of_1000_is_one_and_the_naive_one_nan():
    assert softmax(torch.tensor([1000.0, 0.0])).tolist() == [1, 0]
    assert softmax_naive(torch.tensor([1000.0, 0.0])).isnan().tolist() == [True, False]


@pytest.mark.parametrize(("dtype", "safe", "unsafe"), LARGEST_SAFE)
def test_largest_safe_logit_of_the_naive_softmax(dtype, safe, unsafe):
    x = torch.tensor([safe, 0.0], dtype=dtype)
    assert torch.nextafter(x, torch.full_like(x, math.inf))[0] == unsafe
    assert softmax_naive(x).tolist()[0] == 1
    x[0] = unsafe
    assert softmax_naive(x)[0].isnan()
    assert softmax(x).tolist()[0] == 1


@pytest.mark.parametrize(("dtype", "safe"), [row[:2] for row in LARGEST_SAFE])
def test_two_largest_safe_logits_give_zeros_that_do_not_sum_to_one(dtype, safe):
    x = torch.tensor([safe, safe], dtype=dtype)
    assert softmax_naive(x).tolist() == [0, 0]
    assert softmax(x).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("function", [softmax, softmax_naive])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_agrees_with_torch_along_any_dim(function, dim):
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(function(x, dim), F.softmax(x, dim))


def test_softmax_shift_leaves_no_trace_in_the_gradient():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, (x,))
    assert torch.autograd.gradgradcheck(softmax, (x,))


@pytest.mark.parametrize("function", [softmax, softmax_naive])
def test_softmax_names_a_wrong_argument(function):
    with pytest.raises(TypeError, match=rf"^{function.__name__}: x must have a floating dtype, got torch\.int64"):
        function(torch.arange(3))
    with pytest.raises(IndexError, match=f"^{function.__name__}: dim must name one of 1 axes, got 1"):
        function(torch.zeros(3), 1)


@pytest.mark.parametrize("function", [softmax_cross_entropy, softmax_cross_entropy_native])
def test_cross_entropy_of_1000_is_500(function):
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = function(logits, torch.tensor([[0.5, 0.5]]))
    assert loss.tolist() == [500]
    loss.backward(torch.tensor([3.0]))
    assert logits.grad.tolist() == [[1.5, -1.5]]


def test_naive_cross_entropy_of_1000_is_infinite():
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = softmax_cross_entropy_naive(logits, torch.tensor([[0.5, 0.5]]))
    assert loss.tolist() == [math.inf]
    loss.backward(torch.tensor([3.0]))
    assert logits.grad.isnan().all()


@pytest.mark.parametrize("function", ENTROPIES)
def test_each_row_is_shifted_by_its_own_maximum(function):
    logits = torch.tensor([[80.0, 0.0], [0.0, -1.0]])
    loss = function(logits, torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    torch.testing.assert_close(loss, torch.tensor([80.0, 1.3132616875]))


@pytest.mark.parametrize("function", [softmax_cross_entropy, softmax_cross_entropy_native])
@pytest.mark.parametrize("name", ["typical", "one-hot", "extreme", "non-contiguous"])
def test_cross_entropy_agrees_with_torch_gradients_too(function, name):
    logits, labels = (t.double() for t in SPEC.case(name).inputs(torch.Generator().manual_seed(0)))
    logits.requires_grad_()
    loss, wanted = function(logits, labels), -(labels * F.log_softmax(logits, 1)).sum(1)
    torch.testing.assert_close(loss, wanted)
    cotangent = torch.randn_like(loss)
    (slope,) = torch.autograd.grad(loss, logits, cotangent)
    torch.testing.assert_close(slope, torch.autograd.grad(wanted, logits, cotangent)[0])


@pytest.mark.parametrize("function", ENTROPIES)
@pytest.mark.parametrize("second", [[1.0, 0.5], [0.4375, 0.5], [0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]])
def test_labels_that_do_not_sum_to_one_are_refused(function, second):
    with pytest.raises(ValueError, match=f"labels must sum to one .*, within 5/128, got a sum of {sum(second)}"):
        function(torch.zeros(2, 2), torch.tensor([[0.5, 0.5], second]))


@pytest.mark.parametrize("classes", [2, 3, 10, 1000, 30000])
def test_labels_rounded_to_bfloat16_sum_to_one_well_enough(classes):
    logits = torch.randn(8, classes)
    labels = softmax(logits.bfloat16())
    assert softmax_cross_entropy(logits, labels.float()).isfinite().all()
    assert softmax_cross_entropy(logits, torch.full_like(labels, 1 / classes)).isfinite().all()


def test_scripted_and_compiled_refuse_such_labels_too():
    scripted = torch.jit.script(softmax_cross_entropy)
    compiled = torch.compile(softmax_cross_entropy, backend="aot_eager", fullgraph=True)
    good, bad = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.25, 0.25]])
    for function, error in ((scripted, torch.jit.Error), (compiled, RuntimeError)):
        for _ in range(3):
            torch.testing.assert_close(function(torch.zeros(1, 2), good), torch.tensor([0.6931471806]))
            with pytest.raises(error, match="softmax_cross_entropy: labels must sum to one over the classes"):
                function(torch.zeros(1, 2), bad)


@pytest.mark.parametrize("function", ENTROPIES)
def test_cross_entropy_names_a_wrong_argument(function):
    with pytest.raises(ValueError, match=r"logits must have shape \(batch, classes\), got \[3\]"):
        function(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"logits must have shape \(batch, classes\), got \[3, 0\]"):
        function(torch.zeros(3, 0), torch.zeros(3, 0))
    with pytest.raises(ValueError, match=r"\[2, 3\], got \[2, 1\]"):
        function(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(TypeError, match=rf"^{function.__name__}: labels must have a floating dtype, got torch\.int64"):
        function(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels must be on the device of logits, cpu, got meta"):
        function(torch.zeros(2, 3), torch.zeros(2, 3, device="meta"))

"""Division by a number that has underflowed, and its logarithm: naive, and with a floor."""

import math

import pytest
import torch

from zoo.ops.ratio import log_clamped, ratio_naive, ratio_safe

BELOW_RANGE = [
    (torch.float16, 1e-8),
    (torch.bfloat16, 1e-41),
    (torch.float32, 1e-46),
    (torch.float64, 1e-324),
]


def pair(dtype, tiny):
    x = torch.tensor([3.0, 3.0], dtype=dtype, requires_grad=True)
    return x, torch.tensor([0.5, tiny], dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(("dtype", "tiny"), BELOW_RANGE)
def test_naive_is_nan_below_the_range_gradients_too(dtype, tiny):
    x, y = pair(dtype, tiny)
    out = ratio_naive(x, y)
    assert out[0] == 3
    assert out[1].isnan()
    slopes = torch.autograd.grad(out, (x, y), torch.tensor([0.75, -1.25], dtype=dtype))
    assert [s[0].item() for s in slopes] == [0.75, 0]
    assert all(s[1].isnan() for s in slopes)


@pytest.mark.parametrize(("dtype", "tiny"), BELOW_RANGE)
def test_safe_is_finite_below_the_range_gradients_too(dtype, tiny):
    x, y = pair(dtype, tiny)
    out = ratio_safe(x, y, floor=2.0**-10)
    assert out.tolist() == [3, 0]
    slopes = torch.autograd.grad(out, (x, y), torch.tensor([0.75, -1.25], dtype=dtype))
    assert [s.tolist() for s in slopes] == [[0.75, 0], [0, 0]]


def test_safe_fades_in_proportion_below_the_floor():
    x = torch.tensor([8.0, 8.0], requires_grad=True)
    y = torch.tensor([2.0**-12, -(2.0**-11)], requires_grad=True)
    out = ratio_safe(x, y, floor=2.0**-10)
    assert out.tolist() == [2, 4]
    slopes = torch.autograd.grad(out, (x, y), torch.tensor([1.0, -3.0]))
    assert [s.tolist() for s in slopes] == [[0.25, -1.5], [8192, 24576]]


def test_safe_survives_a_product_beyond_the_range():
    x, y = torch.tensor([1000.0], dtype=torch.float16), torch.tensor([-1000.0], dtype=torch.float16)
    assert ratio_naive(x, y).isinf().all()
    assert ratio_safe(x, y, floor=2.0**-14).tolist() == [1000]


@pytest.mark.parametrize(("dtype", "tiny"), BELOW_RANGE)
def test_log_stops_at_the_floor_with_a_zero_gradient(dtype, tiny):
    y = torch.tensor([0.5, tiny], dtype=dtype, requires_grad=True)
    assert torch.log(y)[1] == -math.inf
    out = log_clamped(y, floor=2.0**-10)
    torch.testing.assert_close(out, torch.tensor([-0.6931471805599453, -6.931471805599453], dtype=dtype))
    (slope,) = torch.autograd.grad(out, y, torch.tensor([0.75, -1.25], dtype=dtype))
    assert slope.tolist() == [1.5, 0]


@pytest.mark.parametrize(
    ("dtype", "floor"),
    [
        (torch.float16, 1e-8),
        (torch.bfloat16, 1e-38),
        (torch.float32, 1e-38),
        (torch.float64, 1e-308),
        (torch.float32, math.nan),
    ],
)
def test_a_floor_that_the_dtype_cannot_hold_is_refused(dtype, floor):
    x = torch.ones(2, dtype=dtype)
    with pytest.raises(ValueError, match=f"^ratio_safe: floor must be at least .* number of y, got {floor}"):
        ratio_safe(x, x, floor)
    with pytest.raises(ValueError, match=f"^log_clamped: floor must be at least .* number of y, got {floor}"):
        log_clamped(x, floor)


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float16, 2.0**-15), (torch.float64, 2.0**-1023)])
def test_scripted_refuses_it_too(dtype, floor):
    x = torch.ones(2, dtype=dtype)
    scripted = torch.jit.script(ratio_safe)
    assert scripted(x, x, 2 * floor).tolist() == [1, 1]
    with pytest.raises(torch.jit.Error, match="ratio_safe: floor must be at least"):
        scripted(x, x, floor)


def test_the_smallest_normal_number_is_a_floor():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert log_clamped(torch.zeros(1, dtype=dtype), torch.finfo(dtype).tiny).isfinite().all()


def test_misfits_are_named():
    with pytest.raises(ValueError, match=r"ratio_naive: y must have the shape of x, \[2\], got \[1\]"):
        ratio_naive(torch.ones(2), torch.ones(1))
    with pytest.raises(TypeError, match=r"ratio_safe: y must have the dtype of x, torch\.float32, got torch\.float16"):
        ratio_safe(torch.ones(2), torch.ones(2).half(), 1.0)
    with pytest.raises(TypeError, match=r"log_clamped: y must have a floating dtype, got torch\.int64"):
        log_clamped(torch.ones(2, dtype=torch.int64), 1.0)

"""The three row sums: one result in float64, one contract, and the rounding errors of a loop."""

import pytest
import torch

from zoo.ops.row_sum import SUM, row_sum, row_sum_sliced, row_sum_unbind

VARIANTS = (row_sum, row_sum_sliced, row_sum_unbind)


@pytest.fixture(params=VARIANTS, ids=lambda f: f.__name__)
def total(request):
    return request.param


def test_rows_are_added(total):
    assert total(torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])).tolist() == [6, 60]


def test_no_rows_sum_to_zeros_that_backward_can_reach(total):
    x = torch.zeros(0, 3, requires_grad=True)
    out = total(x)
    assert out.tolist() == [0, 0, 0]
    out.backward(torch.randn(3))
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize("case", SUM.cases, ids=lambda c: c.name)
def test_all_agree_in_float64_gradients_too(case):
    x = case.inputs(torch.Generator().manual_seed(0))[0].double().requires_grad_()
    wanted = row_sum(x)
    cotangent = torch.randn(wanted.shape, dtype=torch.float64)
    slopes = torch.autograd.grad(wanted, x, cotangent)
    for variant in VARIANTS[1:]:
        out = variant(x)
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
        assert torch.equal(torch.autograd.grad(out, x, cotangent)[0], slopes[0])


def test_a_loop_in_float16_sticks_at_2048():
    ones = torch.ones(4096, 1, dtype=torch.float16)
    assert row_sum(ones).item() == 4096
    assert row_sum_sliced(ones).item() == row_sum_unbind(ones).item() == 2048


def test_misfits_are_named(total):
    with pytest.raises(ValueError, match=rf"^{total.__name__}: x must have shape \(rows, n\), got \[3\]"):
        total(torch.zeros(3))
    with pytest.raises(TypeError, match=rf"^{total.__name__}: x must have a floating dtype, got torch\.int64"):
        total(torch.zeros(3, 2, dtype=torch.int64))


def test_scripted_sums_any_number_of_rows(total):
    scripted = torch.jit.script(total)
    for rows in (0, 1, 5):
        assert scripted(torch.ones(rows, 2)).tolist() == [rows, rows]

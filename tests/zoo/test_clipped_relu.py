"""The clamp with a gradient that leaks beyond its bounds."""

import pytest
import torch
from torch.autograd import gradgradcheck

import zoo
from zoo.models.clipped_relu import Clip, ClippedReLU, clipped_layer

POINTS = [-3.0, 0.0, 0.5, 2.0, 3.0]


def gradient(function, points=POINTS, dtype=torch.float32):
    x = torch.tensor(points, dtype=dtype, requires_grad=True)
    cotangent = torch.tensor([8.0, -4.0, 2.0, 16.0, -32.0][: len(points)], dtype=dtype)
    return torch.autograd.grad(function(x), x, cotangent)[0]


def test_forward_is_the_clamp():
    assert ClippedReLU(limit=2.0)(torch.tensor(POINTS)).tolist() == [0.0, 0.0, 0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("leak", "wanted"),
    [
        (0.0, [0.0, -4.0, 2.0, 16.0, 0.0]),
        (0.25, [2.0, -4.0, 2.0, 16.0, -8.0]),
        (1.0, [8.0, -4.0, 2.0, 16.0, -32.0]),
    ],
)
def test_gradient_passes_inside_and_leaks_outside(leak, wanted):
    assert gradient(ClippedReLU(limit=2.0, leak=leak)).tolist() == wanted


def test_without_leak_it_is_the_clamps_own_derivative():
    """Compare away from the bounds: at the bounds, the derivative of clamp differs between torch 2.13 and 2.15."""
    points = [-3.0, 0.25, 0.5, 1.75, 3.0]
    assert torch.equal(gradient(ClippedReLU(2.0, 0.0), points), gradient(lambda x: torch.clamp(x, 0.0, 2.0), points))


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_value_and_gradient_keep_a_low_dtype(low):
    x = torch.tensor([0.5], dtype=low)
    assert ClippedReLU()(x).dtype == low
    assert gradient(ClippedReLU(2.0), dtype=low).dtype == low


def test_second_derivatives_pass_through_the_gradient():
    x = torch.tensor([-3.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)

    def squared(t):
        return Clip.apply(t * 1.0, 2.0, 1.0) ** 2  # with leak 1 the derivative is 2 y, which is linear in y

    assert gradgradcheck(lambda g: torch.autograd.grad(ClippedReLU(2.0)(x), x, g, create_graph=True)[0], (x,))
    (first,) = torch.autograd.grad(squared(x), x, torch.ones(3).double(), create_graph=True)
    assert first.tolist() == [0.0, 1.0, 4.0]
    assert torch.autograd.grad(first, x, torch.ones(3).double())[0].tolist() == [2.0, 2.0, 2.0]


def test_vmap_and_func_grad():
    x = torch.tensor(POINTS)
    model = ClippedReLU(2.0, 0.25)
    assert torch.equal(torch.vmap(model)(x), model(x))
    assert torch.vmap(torch.func.grad(model))(x).tolist() == [0.25, 1.0, 1.0, 1.0, 0.25]


def test_backward_keeps_one_byte_per_element():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ClippedReLU()(torch.randn(10, 10, requires_grad=True))
    assert [tensor.nbytes for tensor in saved] == [100]


@pytest.mark.parametrize(("leak", "recovers"), [(0.0, False), (0.1, True)])
def test_the_leak_brings_a_saturated_unit_back(leak, recovers):
    bias = torch.tensor([-1.0, 3.0], requires_grad=True)
    clip = ClippedReLU(2.0, leak)
    for _ in range(100):
        loss = (clip(bias) - torch.tensor([0.5, 1.5])).square().sum()
        (slope,) = torch.autograd.grad(loss, bias)
        bias = (bias - 0.2 * slope).detach().requires_grad_()
    wanted = [0.5, 1.5] if recovers else [-1.0, 3.0]
    torch.testing.assert_close(bias.tolist(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scripted", [False, True])
def test_integers_are_refused_by_name(scripted):
    model = torch.jit.script(ClippedReLU()) if scripted else ClippedReLU()
    with pytest.raises(torch.jit.Error if scripted else TypeError, match="ClippedReLU: x must have a floating dtype"):
        model(torch.arange(3))


def test_bad_settings_are_refused_by_name():
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"^ClippedReLU: limit must be positive, got {limit}"):
            ClippedReLU(limit=limit)
    for leak in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"^ClippedReLU: leak must lie in \[0, 1\], got {leak}"):
            clipped_layer(leak=leak)


def test_the_zoos_cases_reach_both_bounds():
    torch.manual_seed(0)
    y = zoo.create_model("clipped_relu")(*zoo.example_inputs("clipped_relu"))
    assert (y == 0).any()
    assert (y == 0.5).any()
    assert ((y > 0) & (y < 0.5)).any()

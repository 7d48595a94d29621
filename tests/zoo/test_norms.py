"""Layer norm and RMS norm written out, beside torch's own."""

import pytest
import torch
from torch import nn

import zoo
from zoo.models.layer_norm import LayerNormByHand
from zoo.models.rms_norm import EPS, RMSNormByHand

BY_HAND = [LayerNormByHand, RMSNormByHand]


def bias_error(norm, rows=8192):
    """Relative error of the gradient of the bias, for many rows of bfloat16 that all ask for the same."""
    generator = torch.Generator().manual_seed(0)
    y = norm(torch.randn(rows, 32, generator=generator).bfloat16())
    gradient = torch.randn(32, generator=generator).to(y.dtype).expand(rows, 32)
    y.backward(gradient)
    right = gradient.double().sum(0)
    return float((norm.bias.grad.double() - right).norm() / right.norm())


def test_a_row_comes_out_with_mean_zero_and_deviation_one():
    y = LayerNormByHand(64)(100 + 5 * torch.randn(8, 64))
    torch.testing.assert_close(y.mean(1), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(y.var(1, unbiased=False), torch.ones(8), rtol=0, atol=1e-4)


def test_rms_norm_keeps_the_mean_and_gives_mean_square_one():
    x = torch.tensor([[3.0, 3.0, 3.0, 3.0], [2.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(RMSNormByHand(4)(x), torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0]]))


def test_a_mean_of_1000_deviations_costs_no_accuracy():
    x = 1000 + torch.randn(8, 64)
    exact = LayerNormByHand(64).double()(x.double())
    assert (LayerNormByHand(64)(x) - exact).abs().max() < 1e-3


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", BY_HAND)
def test_statistics_are_float32_for_a_low_dtype(build, low):
    x = (300 * torch.randn(4, 512)).to(low)  # in float16 their squares are infinite
    y = build(512)(x)
    assert y.dtype == low
    wide = build(512).double()(x.double())
    assert (y.double() - wide).abs().max() <= torch.finfo(low).eps * wide.abs().max()


def test_the_bias_gradient_of_many_bfloat16_rows_is_right_where_torchs_is_not():
    assert bias_error(LayerNormByHand(32)) < 1e-5
    assert bias_error(nn.LayerNorm(32)) > 0.5  # zoo/probes/layer_norm_sums_in_low_precision.py


def test_torchs_rms_norm_has_another_eps_for_each_dtype():
    x = torch.full((1, 4), 2.0**-10)
    default, fixed = nn.RMSNorm(4), nn.RMSNorm(4, eps=EPS)
    assert (default(x).double() - default.double()(x.double())).abs().max() > 0.01
    torch.testing.assert_close(fixed(x).double(), fixed.double()(x.double()))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_the_twin_has_the_same_gradients(name):
    model, twin = zoo.create_model(name).double(), zoo.create_model(f"{name}_native").double()
    twin.load_state_dict(model.state_dict())
    x = zoo.example_inputs(name)[0].double().requires_grad_()
    cotangent = torch.randn_like(x)
    mine = torch.autograd.grad(model(x), (x, *model.parameters()), cotangent)
    its = torch.autograd.grad(twin(x), (x, *twin.parameters()), cotangent)
    torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("build", BY_HAND)
def test_a_wrong_size_or_dtype_is_named(build, scripted):
    model = torch.jit.script(build(8)) if scripted else build(8)
    name = build.__name__
    with pytest.raises(
        torch.jit.Error if scripted else ValueError, match=rf"{name}: x must have trailing size 8, got shape \[2, 1\]"
    ):
        model(torch.ones(2, 1))  # without the check, it would broadcast
    with pytest.raises(torch.jit.Error if scripted else ValueError, match=r"got shape \[\]"):
        model(torch.tensor(1.0))
    with pytest.raises(torch.jit.Error if scripted else TypeError, match=f"{name}: x must have a floating dtype, got"):
        model(torch.ones(2, 8, dtype=torch.int64))


@pytest.mark.parametrize("build", BY_HAND)
def test_arguments_are_checked_in_one_line(build):
    name = build.__name__
    with pytest.raises(TypeError, match=f"^{name}: x must be a tensor, got list$"):
        build(2)([1.0, 2.0])
    with pytest.raises(TypeError, match=f"^{name}: x must be a tensor, got None$"):
        build(2)(None)
    with pytest.raises(ValueError, match=f"^{name}: normalized_shape must be at least 1, got -2$"):
        build(-2)
    with pytest.raises(TypeError, match=f"^{name}: normalized_shape must be an integer, got None$"):
        build(None)
    for eps in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"^{name}: eps must be a positive float, got {eps}$"):
            build(4, eps=eps)
    with pytest.raises(TypeError, match=f"^{name}: eps must be a number, got None$"):
        build(4, eps=None)

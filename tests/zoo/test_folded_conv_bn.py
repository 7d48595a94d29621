"""Batch norm folded into a convolution gives what the two layers give in eval mode."""

import pytest
import torch
from torch import nn

from zoo.models.folded_conv_bn import ConvThenNorm, FoldedConvNorm, fold_conv_bn


def settled(channels, **options):
    """Return a norm in eval mode with statistics of its own."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels, **options)
    for _ in range(3):
        norm(torch.randn(8, channels, 4, 4) * torch.arange(1.0, channels + 1).reshape(-1, 1, 1) + 3)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    return norm.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": 4, "stride": 2, "padding": 1},
        {"dilation": 2, "padding": "same"},
        {"padding": (1, 2), "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_one_convolution_equals_the_two_layers(options, affine, bias):
    conv, norm = nn.Conv2d(4, 8, 3, bias=bias, **options).double(), settled(8, affine=affine).double()
    before = {name: t.clone() for name, t in ConvThenNorm(conv, norm).state_dict().items()}
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    folded = fold_conv_bn(conv, norm)
    assert type(folded) is nn.Conv2d
    assert not folded.training
    torch.testing.assert_close(folded(x), norm(conv(x)))
    torch.testing.assert_close(FoldedConvNorm(conv, norm).eval()(x), norm(conv(x)))
    assert all(torch.equal(t, before[name]) for name, t in ConvThenNorm(conv, norm).state_dict().items())


def test_statistics_in_float32_are_folded_in_float32():
    conv, norm = nn.Conv2d(4, 8, 3).half(), settled(8)
    folded, exact = fold_conv_bn(conv, norm), fold_conv_bn(conv.double(), norm.double())
    assert folded.weight.dtype == folded.bias.dtype == torch.float16
    assert torch.equal(folded.weight, exact.weight.half())  # rounded once
    assert torch.equal(folded.bias, exact.bias.half())


def test_a_variance_of_zero_leaves_finite_numbers():
    conv, norm = nn.Conv2d(4, 8, 3), settled(8)
    norm.running_var.zero_()
    assert fold_conv_bn(conv, norm).weight.isfinite().all()


def test_bad_arguments_get_one_line():
    conv, norm = nn.Conv2d(4, 8, 3), settled(8)
    for bad, message, error in [
        ((conv, nn.BatchNorm2d(8)), "norm must be in eval mode, got training mode", ValueError),
        ((conv, settled(8, track_running_stats=False)), "norm must have running statistics", ValueError),
        ((conv, settled(4)), "norm must have the 8 channels that conv returns, got 4", ValueError),
        ((nn.Linear(4, 8), norm), "conv must be a Conv2d, got Linear", TypeError),
        ((nn.ConvTranspose2d(4, 8, 3), norm), "conv must be a Conv2d, got ConvTranspose2d", TypeError),
        ((None, norm), "conv must be a Conv2d, got None", TypeError),
        ((conv, nn.LayerNorm(8)), "norm must be a BatchNorm2d, got LayerNorm", TypeError),
    ]:
        with pytest.raises(error, match=f"^fold_conv_bn: {message}"):
            fold_conv_bn(*bad)


@pytest.mark.parametrize("layer", [ConvThenNorm, FoldedConvNorm])
def test_the_layers_check_their_parts_and_input(layer):
    with pytest.raises(ValueError, match=f"^{layer.__name__}: norm must have the 8 channels"):
        layer(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(4))
    with pytest.raises(TypeError, match=f"^{layer.__name__}: x must be a tensor, got list"):
        layer(nn.Conv2d(4, 8, 3), settled(8)).eval()([1.0])


@pytest.mark.parametrize("scripted", [False, True])
def test_a_norm_in_training_mode_cannot_be_folded_in_a_call(scripted):
    model = FoldedConvNorm(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8))
    model = torch.jit.script(model) if scripted else model
    with pytest.raises(torch.jit.Error if scripted else ValueError, match="norm must be in eval mode, got training"):
        model(torch.ones(1, 4, 5, 5))

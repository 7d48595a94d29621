"""Batch norm folded into the convolution before it, for inference: one convolution computes what the two layers do.

In eval mode a batch norm is an affine map of every channel, y ↦ s·y + t with s = γ / sqrt(var + eps) and
t = β − s·mean. Applied to a convolution it gives another convolution, with weight s·W and bias s·b + t.
`fold_conv_bn` returns that convolution. `FoldedConvNorm` folds anew at every call: it has the parameters and buffers
of its twin, `ConvThenNorm`, and gives their gradients. In training the statistics depend on the batch, and nothing
can be folded.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
arXiv:1712.05877, on batch normalization folding; and "Fusing convolution and batch norm using a custom function",
which sets itself apart from this technique.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.claim import Claim
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def _affine(
    mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of each channel, in float32 at least: half precision would round the statistics."""
    wide = torch.promote_types(mean.dtype, torch.float32)
    scale = (variance.to(wide) + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.to(wide)
    shift = -mean.to(wide) * scale
    if bias is not None:
        shift = shift + bias.to(wide)
    return scale, shift


def _folded(weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the one convolution, in the dtype of `weight`."""
    if bias is not None:
        shift = shift + bias * scale
    return (weight * scale.reshape(-1, 1, 1, 1)).to(weight.dtype), shift.to(weight.dtype)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _statistics(function: str, conv: object, norm: object) -> tuple[Tensor, Tensor]:
    """Check that a norm can be folded into a convolution, and return the running mean and variance."""
    if not isinstance(conv, nn.Conv2d):
        raise TypeError(f"{function}: conv must be a Conv2d, got {_kind(conv)}")
    if not isinstance(norm, nn.BatchNorm2d):
        raise TypeError(f"{function}: norm must be a BatchNorm2d, got {_kind(norm)}")
    if norm.num_features != conv.out_channels:
        raise ValueError(
            f"{function}: norm must have the {conv.out_channels} channels that conv returns, got {norm.num_features}"
        )
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError(f"{function}: norm must have running statistics, got track_running_stats=False")
    return mean, variance


def fold_conv_bn(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """Return a new convolution that computes norm(conv(x)) in eval mode; the arguments stay as they are.

    Args:
        conv: any Conv2d, with or without bias, with any stride, padding, dilation and groups.
        norm: a BatchNorm2d in eval mode, with running statistics; `affine=False` is allowed.

    Returns:
        A Conv2d with a bias, in eval mode, with dtype and device of `conv`. The folding is done in float32 at least,
        then the weight and bias are rounded to the dtype of `conv`.

    Raises:
        TypeError: `conv` is no Conv2d, or `norm` no BatchNorm2d.
        ValueError: `norm` is in training mode, has no running statistics, or another number of channels than `conv`.

    >>> conv, norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8).eval()
    >>> x = torch.randn(2, 3, 6, 6)
    >>> torch.testing.assert_close(fold_conv_bn(conv, norm)(x), norm(conv(x)))
    """
    mean, variance = _statistics("fold_conv_bn", conv, norm)
    if norm.training:
        raise ValueError("fold_conv_bn: norm must be in eval mode, got training mode")
    result = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]  # torch keeps sizes as tuples of any length
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        padding_mode=conv.padding_mode,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )
    assert result.bias is not None
    with torch.no_grad():
        scale, shift = _affine(mean, variance, norm.weight, norm.bias, norm.eps)
        weight, bias = _folded(conv.weight, conv.bias, scale, shift)
        result.weight.copy_(weight)
        result.bias.copy_(bias)
    return result.eval()


def _border(conv: nn.Conv2d) -> list[int]:
    """Return what a convolution pads, in the order of `F.pad`: left, right, top, bottom."""
    if isinstance(conv.padding, str):
        added = [d * (k - 1) * (conv.padding == "same") for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        (top, bottom), (left, right) = [(n // 2, n - n // 2) for n in added]
    else:
        (top, left), (bottom, right) = conv.padding, conv.padding
    return [left, right, top, bottom]


class ConvThenNorm(nn.Module):
    """norm(conv(x)), the two layers that `FoldedConvNorm` makes one of.

    Args:
        conv: a Conv2d.
        norm: a BatchNorm2d with running statistics and as many channels as `conv` returns.

    Raises:
        TypeError: `conv` is no Conv2d, or `norm` no BatchNorm2d.
        ValueError: `norm` has no running statistics, or another number of channels than `conv`.

    >>> ConvThenNorm(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))(torch.randn(2, 3, 6, 6)).shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        _statistics(type(self).__name__, conv, norm)
        self.conv = conv
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to (batch, out_channels, h', w').

        Raises:
            TypeError: `x` is not a tensor.
            RuntimeError: shape or dtype of `x` do not fit the convolution (torch names both).
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("ConvThenNorm", x=x)
        y: Tensor = self.norm(self.conv(x))
        return y


class FoldedConvNorm(ConvThenNorm):
    """`ConvThenNorm` in eval mode as one convolution; arguments, parameters and buffers are the same.

    >>> model, x = FoldedConvNorm(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval(), torch.randn(2, 3, 6, 6)
    >>> torch.testing.assert_close(model(x), model.norm(model.conv(x)))
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__(conv, norm)
        self.border = _border(conv)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to (batch, out_channels, h', w').

        Raises:
            ValueError: the norm is in training mode.
            TypeError: `x` is not a tensor.
            RuntimeError: shape or dtype of `x` do not fit the convolution (torch names both).
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("FoldedConvNorm", x=x)
        if self.norm.training:
            raise ValueError("FoldedConvNorm: norm must be in eval mode, got training mode")
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale, shift = _affine(mean, variance, self.norm.weight, self.norm.bias, self.norm.eps)
        weight, bias = _folded(self.conv.weight, self.conv.bias, scale, shift)
        padding = self.conv.padding
        if self.conv.padding_mode != "zeros":
            x, padding = F.pad(x, self.border, mode=self.conv.padding_mode), (0, 0)
        return F.conv2d(x, weight, bias, self.conv.stride, padding, self.conv.dilation, self.conv.groups)


def _build(layer: type[ConvThenNorm], channels: int = 16, groups: int = 1) -> ConvThenNorm:
    """Draw statistics and an affine map that differ by channel, as training would leave them, in eval mode."""
    want_sizes(layer.__name__, channels=channels, groups=groups)
    norm = nn.BatchNorm2d(channels)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.25, 4.0)
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
    return layer(nn.Conv2d(4, channels, 3, stride=2, padding=1, groups=groups), norm).eval()


def _reference(model: ConvThenNorm, x: Tensor) -> Tensor:
    """Multiply the patches with the filters, one group after the other; then norm."""
    conv, norm = model.conv, model.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert conv.bias is not None
    patches = nn.functional.pad(x, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)
    parts = zip(patches.chunk(conv.groups, 1), conv.weight.chunk(conv.groups), strict=True)
    y = torch.cat([torch.einsum("bchwij,ocij->bhwo", patch, weight) for patch, weight in parts], 3) + conv.bias
    normed = (y - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return normed.permute(0, 3, 1, 2)


def _images(batch: int, side: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(batch, 4, side, side, generator=generator),)


def _scale(layer: type[ConvThenNorm], groups: int = 1) -> Scale:
    return Scale(
        size_name="channels",
        sizes=(16, 64, 256),
        working=64,
        working_on_cuda=2**11,
        build=lambda n: _build(layer, n, groups),
        inputs=lambda n, g: (torch.randn(4, 4, 32, n, generator=g),),
    )


CONV_THEN_BN = Spec(
    name="conv_then_bn",
    summary="a convolution and a batch norm on running statistics, one after the other",
    source="Jacob et al. 2018, arXiv:1712.05877, section 3.2",
    formula="y = γ (W ∗ x + b − mean) / sqrt(var + eps) + β",
    shapes="(batch, in_channels, h, w) → (batch, out_channels, h', w')",
    build=partial(_build, ConvThenNorm),
    cases=(
        Case(name="typical", inputs=partial(_images, 3, 9)),
        Case(name="one-image", inputs=partial(_images, 1, 4)),
        Case(name="channels-last", inputs=lambda g: (torch.randn(2, 6, 6, 4, generator=g).permute(0, 3, 1, 2),)),
    ),
    error_inputs=(
        ErrorInput(
            name="five-channels",
            inputs=lambda _: (torch.ones(2, 5, 6, 6),),
            error=RuntimeError,
            match="channels",
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    family=Family(sizes={"batch": (1, 4), "side": (1, 9)}, inputs=_images),
    scale=_scale(ConvThenNorm),
)

FOLDED = replace(
    CONV_THEN_BN,
    name="folded_conv_bn",
    summary="`conv_then_bn` as one convolution, with the norm folded into its weight and bias",
    formula="y = (s W) ∗ x + s (b − mean) + β, s = γ / sqrt(var + eps)",
    build=partial(_build, FoldedConvNorm),
    twin="conv_then_bn",
    scale=_scale(FoldedConvNorm),
    claims=(
        Claim(
            text="inference is 30 % faster with the batch norms folded into the convolutions",
            source="README of pytorch_bn_fusion; whole networks, the machine is not named",
            factor=1.3,
            quantity="forward",
            baseline="conv_then_bn",
            sizes=(64, 256),
        ),
    ),
)
GROUPED = replace(
    FOLDED,
    name="folded_grouped_conv_bn",
    summary="`folded_conv_bn` with two groups of channels",
    build=partial(_build, FoldedConvNorm, groups=2),
    twin="",
    scale=_scale(FoldedConvNorm, groups=2),
    claims=(),
)

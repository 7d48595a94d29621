"""A small image classifier on convolutions with batch norm, in two steps or fused into one Function.

Source: "Fusing convolution and batch norm using a custom function". Both layers compute the same. For backward, the
fused layer saves only the input and the weight of the convolution; the two steps also save the result of the
convolution. The norm is that of `batch_norm2d`: it always uses batch statistics, and eps is outside the root.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_floating, want_floats, want_sizes
from zoo.case import Case
from zoo.claim import Claim
from zoo.expect import Expect
from zoo.family import Family
from zoo.functions.batch_norm2d import batch_norm2d
from zoo.functions.conv2d import conv2d
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d
from zoo.scale import Scale
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED
from zoo.spec import Spec


class ConvNorm(nn.Module):
    """A convolution without bias and a batch norm, as two Functions.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: side of the square kernel.
        eps: positive float that is added to the standard deviation.

    Raises:
        TypeError: a size is no integer, or `eps` is no float.
        ValueError: a size is below 1, or `eps` is not positive.

    >>> ConvNorm(3, 16)(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 16, 30, 30])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3, eps: float = 1e-3) -> None:
        super().__init__()
        name = type(self).__name__
        want_sizes(name, in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        want_floats(name, eps=eps)
        if not eps > 0:
            raise ValueError(f"{name}: eps must be positive, got {eps}")
        self.eps = float(eps)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to (batch, out_channels, h - k + 1, w - k + 1).

        Raises:
            TypeError, ValueError: as `conv2d` and `batch_norm2d`.
        """
        want_floating("ConvNorm", "x", x)
        return batch_norm2d(conv2d(x, self.weight), self.eps)


class FusedConvNorm(ConvNorm):
    """`ConvNorm` as one Function: same parameters and same result, but it saves less memory for backward.

    >>> FusedConvNorm(3, 16)(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 16, 30, 30])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to (batch, out_channels, h - k + 1, w - k + 1).

        Raises:
            TypeError, ValueError: as `fused_conv_bn2d`.
        """
        want_floating("FusedConvNorm", "x", x)
        return fused_conv_bn2d(x, self.weight, self.eps)


class ImageClassifier(nn.Module):
    """Two normalised 3x3 convolutions with ReLUs, the mean over the image and a linear layer.

    Args:
        layer: the normalised convolution, `ConvNorm` or `FusedConvNorm`; a state dict fits both.
        in_channels: number of channels of the images.
        num_classes: number of logits.

    Raises:
        TypeError: `layer` is no such class, or a size is no integer.
        ValueError: a size is below 1.

    >>> ImageClassifier(FusedConvNorm)(torch.randn(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """

    def __init__(self, layer: type[ConvNorm] = FusedConvNorm, in_channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        if not (isinstance(layer, type) and issubclass(layer, ConvNorm)):
            raise TypeError(f"ImageClassifier: layer must be ConvNorm or a subclass, got {layer!r}")
        want_sizes("ImageClassifier", in_channels=in_channels, num_classes=num_classes)
        self.in_channels = in_channels
        self.conv1 = layer(in_channels, 8)
        self.conv2 = layer(8, 16)
        self.linear = nn.Linear(16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to logits (batch, num_classes).

        Raises:
            TypeError: `images` is no tensor or does not hold floating-point numbers, or its dtype differs from that
                of the parameters without autocast.
            ValueError: `images` has another rank or number of channels, is smaller than 5x5, or gives a norm
                fewer than two numbers per channel.
        """
        want_floating("ImageClassifier", "images", images)
        if images.dim() != 4 or images.size(1) != self.in_channels or min(images.size(2), images.size(3)) < 5:  # noqa: PLR2004
            raise ValueError(
                f"ImageClassifier: images must have shape (batch, {self.in_channels}, h, w) with h and w at least 5, "
                f"got {list(images.shape)}"
            )
        features = torch.relu(self.conv2(torch.relu(self.conv1(images))))
        logits: Tensor = self.linear(features.mean((2, 3)))
        return logits


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply every patch with every filter, and compute the norm from sums of squares."""
    side = weight.size(2)
    patches = x.unfold(2, side, 1).unfold(3, side, 1)
    y = torch.einsum("bchwij,ocij->ohwb", patches, weight)
    rows = y.flatten(1)
    centred = rows - rows.mean(1, keepdim=True)
    deviation = (centred.square().sum(1, keepdim=True) / (rows.size(1) - 1)).sqrt()
    return (centred / (deviation + eps)).reshape(y.shape).permute(3, 0, 1, 2)


def _reference(model: ImageClassifier, images: Tensor) -> Tensor:
    x = images
    for conv in (model.conv1, model.conv2):
        x = _normed(x, conv.weight, conv.eps)
        x = x * (x > 0)
    return x.mean((2, 3)) @ model.linear.weight.t() + model.linear.bias


def _images(batch: int, side: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(batch, 1, side, side, generator=generator),)


def _scale(layer: type[ConvNorm]) -> Scale:
    return Scale(
        size_name="batch",
        sizes=(2, 8, 32),
        working=4,
        working_on_cuda=2**12,
        build=lambda _: ImageClassifier(layer),
        inputs=lambda n, g: _images(n, 28, g),
    )


_WRONG_WITH_AMX = Expect(
    outcome="FAIL",
    reason="oneDNN computes a bfloat16 convolution of eight images with a kernel of side 8 wrong, as AMX does it",
    link="https://github.com/pytorch/pytorch/issues/169688",
    precisions=("amp_bf16",),
    devices=("cpu",),
    tensor="gradient of conv1.weight",
    gate="norm",
    probe="convolution_wrong_with_amx",
)

CONV_BN = Spec(
    name="conv_bn",
    alias="conv_bn_classifier",
    summary="an image classifier on convolution and batch norm in two steps",
    source="Fusing convolution and batch norm using a custom function",
    formula="logits = W mean(relu(bn(k₂ ∗ relu(bn(k₁ ∗ x))))) + b, bn(y) = (y − mean y) / (std y + eps)",
    shapes="(batch, in_channels, h, w) → (batch, num_classes)",
    build=partial(ImageClassifier, layer=ConvNorm),
    cases=(
        Case(name="typical", inputs=partial(_images, 8, 10)),
        Case(name="one-image", inputs=partial(_images, 1, 12)),
        Case(
            name="non-contiguous",
            inputs=lambda g: (torch.randn(10, 8, 1, 12, generator=g).permute(1, 2, 0, 3)[..., 1:-1],),
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED, _WRONG_WITH_AMX),
    family=Family(sizes={"batch": (1, 5), "side": (8, 13)}, inputs=_images),
    scale=_scale(ConvNorm),
)

FUSED_CONV_BN = replace(
    CONV_BN,
    name="fused_conv_bn",
    alias="fused_conv_bn_classifier",
    summary="an image classifier on convolution and batch norm fused into one Function",
    build=partial(ImageClassifier, layer=FusedConvNorm),
    twin="conv_bn",
    scale=_scale(FusedConvNorm),
    claims=(
        Claim(
            text="peak memory of training on MNIST in batches of 2048: 1.56 GB fused, 2.68 GB unfused",
            source="Fusing convolution and batch norm using a custom function, on an NVIDIA RTX 3070",
            factor=1.72,
            quantity="peak",
            baseline="conv_bn",
        ),
        Claim(
            text="peak memory of a step on CUDA in batches of 2048: 1.56 GB fused, 2.68 GB unfused",
            source="Fusing convolution and batch norm using a custom function, on an NVIDIA RTX 3070",
            factor=1.72,
            quantity="peak",
            baseline="conv_bn",
            device="cuda",
            sizes=(2048,),
        ),
    ),
)

"""A small residual network: two basic blocks, of which the second halves the image and doubles the channels.

Source: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385. A block adds its input to what two
3×3 convolutions with batch norm make of it. Where the shapes differ, a 1×1 convolution with batch norm projects the
input. The ReLUs work in place: each overwrites the result of a norm or of an add, which nobody else needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import PACKAGE_HIDES_BUFFERS
from zoo.spec import Spec


class BasicBlock(nn.Module):
    """relu(x' + bn(conv(relu(bn(conv(x)))))), where x' is x or its projection.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        stride: stride of the first convolution and of the projection.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is below 1.

    >>> BasicBlock(16, 32, stride=2)(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 32, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        want_sizes("BasicBlock", in_channels=in_channels, out_channels=out_channels, stride=stride)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to (batch, out_channels, ceil(h / stride), ceil(w / stride)).

        Raises:
            TypeError: `x` is not a tensor.
            RuntimeError: shape or dtype of `x` do not fit the convolution (torch names both).
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("BasicBlock", x=x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.downsample(x)
        result: Tensor = self.relu(y)
        return result


class ResNet(nn.Module):
    """A convolution, a basic block for each width, the mean over the image and a linear layer.

    Args:
        in_channels: channels of the images.
        widths: channels of the blocks; each block after the first halves the image.
        num_classes: number of logits.

    Raises:
        TypeError: `widths` is not a list or tuple, or a number is not an integer.
        ValueError: `widths` is empty, or a number is below 1.

    >>> ResNet()(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(self, in_channels: int = 3, widths: Sequence[int] = (16, 32), num_classes: int = 10) -> None:
        super().__init__()
        want_sizes("ResNet", in_channels=in_channels, num_classes=num_classes)
        if not isinstance(widths, (list, tuple)):
            kind = "None" if widths is None else type(widths).__name__
            raise TypeError(f"ResNet: widths must be a list or tuple, got {kind}")
        if not widths:
            raise ValueError("ResNet: widths must not be empty")
        for i, width in enumerate(widths):
            want_sizes("ResNet", **{f"widths[{i}]": width})
        self.in_channels = in_channels
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
        )
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(BasicBlock(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(pairs)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, in_channels, h, w), floating, to logits (batch, num_classes).

        Raises:
            ValueError: `images` has another rank or number of channels, no pixels, or, in training, gives a norm only
                one number per channel (torch says so).
            TypeError: `images` is not a tensor, or does not hold floating-point numbers.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("ResNet", images=images)
        if images.dim() != 4 or images.size(1) != self.in_channels or images.size(2) * images.size(3) == 0:  # noqa: PLR2004
            raise ValueError(
                f"ResNet: images must have shape (batch, {self.in_channels}, h, w) with at least one pixel, "
                f"got {list(images.shape)}"
            )
        if not images.is_floating_point():
            raise TypeError(f"ResNet: images must have a floating dtype, got {images.dtype}")
        features = self.blocks(self.stem(images))
        logits: Tensor = self.fc(self.pool(features).flatten(1))
        return logits


def _convolved(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Cut out the patches, and multiply each with the matrix of all filters."""
    side, stride, padding = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
    patches = nn.functional.unfold(x, side, padding=padding, stride=stride)
    height = (x.size(2) + 2 * padding - side) // stride + 1
    result: Tensor = (conv.weight.flatten(1) @ patches).unflatten(2, (height, -1))
    return result


def _normed(norm: nn.BatchNorm2d, y: Tensor) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    columns = y.movedim(1, -1)
    mean, variance = norm.running_mean, norm.running_var
    if norm.training:
        mean = columns.flatten(0, 2).mean(0)
        variance = (columns - mean).square().flatten(0, 2).mean(0)
    columns = (columns - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    return columns.movedim(-1, 1)


def _layers(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            x = _convolved(layer, x)
        elif isinstance(layer, nn.BatchNorm2d):
            x = _normed(layer, x)
        else:
            x = x * (x > 0)
    return x


def _reference(model: ResNet, images: Tensor) -> Tensor:
    x = _layers(list(model.stem), images)
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        branch = _layers([block.conv1, block.bn1, block.relu, block.conv2, block.bn2], x)
        shortcut = list(block.downsample) if isinstance(block.downsample, nn.Sequential) else []
        x = _layers([block.relu], _layers(shortcut, x) + branch)
    return x.mean((2, 3)) @ model.fc.weight.t() + model.fc.bias


def _images(batch: int, side: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(batch, 3, side, side, generator=generator),)


def _freeze(model: ResNet) -> None:
    """Let the running statistics follow random images, move the affine maps away from 1 and 0, and switch to eval."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.5, 1.5)
            module.bias.uniform_(-0.5, 0.5)
    for _ in range(20):
        model(torch.randn(8, 3, 12, 12))
    model.eval()


SCALE = Scale(
    size_name="width",
    sizes=(16, 32, 64),
    working=16,
    working_on_cuda=2**9,
    build=lambda n: ResNet(widths=(n, 2 * n)),
    inputs=lambda n, g: _images(n // 4, 16, g),
)

TRAIN = Spec(
    name="resnet",
    summary="a small residual network, on batch statistics",
    source="He et al. 2016, Deep Residual Learning for Image Recognition, arXiv:1512.03385",
    formula="x ← relu(P x + bn(k2 ∗ relu(bn(k1 ∗ x)))) per block; logits = W mean(x) + b",
    shapes="(batch, in_channels, h, w) → (batch, num_classes)",
    build=ResNet,
    cases=(
        Case(name="typical", inputs=partial(_images, 4, 8)),
        Case(name="one-image", inputs=partial(_images, 1, 8)),
        Case(
            name="odd-sides",  # and channels last
            inputs=lambda g: (torch.randn(2, 7, 9, 3, generator=g).permute(0, 3, 1, 2),),
        ),
    ),
    error_inputs=(
        ErrorInput(
            name="one-channel",
            inputs=lambda _: (torch.ones(2, 1, 8, 8),),
            error=ValueError,
            match="images must have shape",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(2, 3, 8, 8, dtype=torch.int64),),
            error=TypeError,
            match="images must have a floating dtype",
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(PACKAGE_HIDES_BUFFERS,),
    family=Family(sizes={"batch": (1, 4), "side": (8, 12)}, inputs=_images),
    scale=SCALE,
)

EVAL = replace(
    TRAIN,
    name="resnet_eval",
    summary="a small residual network, on running statistics",
    initialise=_freeze,
    cases=tuple(replace(case, independent_samples=True) for case in TRAIN.cases),  # no statistics of the batch
    expectations=(),
)

"""Models that live on views: outputs that share memory, strided inputs, nested outputs, writes into slices."""

from typing import NamedTuple

import torch
from spec_parts import drawn, function, hurried, normal, normals
from torch import Tensor, nn


class Moments(NamedTuple):
    """Mean and spread."""

    mean: Tensor
    spread: Tensor


class Chunked(nn.Module):
    """Three views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = torch.tanh(self.linear(x)).chunk(3, dim=-1)
        return a, b, c


class Shuffle(nn.Module):
    """Sub-pixel upsampling, and a crop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pixel_shuffle(self.conv(x), 2)[..., 1:-1, 1:-1]


class Slots(nn.Module):
    """Writes into slices of a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(x.shape[0], 8)
        y[:, ::2] = self.linear(x)
        y[:, 1::2] = x.cos()
        y[0, 1:3].mul_(0.5)
        return y


class Distribution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Moments:
        mean, raw = self.linear(x).split(3, dim=-1)
        return Moments(mean, nn.functional.softplus(raw))


class Pyramid(nn.Module):
    """A dict of a list and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, list[Tensor] | Tensor]:
        y = self.conv(x)
        return {"levels": [y, nn.functional.avg_pool1d(y, 2)], "mean": y.mean(-1)}


class ShiftedWindows(nn.Module):
    """Rolls an image, cuts it into windows, mixes each window, and puts it together again."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.mix = nn.Linear(4 * width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = torch.roll(x, (-1, -1), (1, 2))
        y = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4 * c)
        y = self.mix(y).view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(y, (1, 1), (1, 2))


def _strided(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 4, generator=g).t(), torch.randn(10, 6, generator=g)[::2]


def _stepped(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.mT).sin() * b.sum(1)


def _banded(x: Tensor) -> Tensor:
    rows = torch.as_strided(x, (x.shape[0], 5, 3), (x.stride(0), x.stride(1), x.stride(1)))
    return (rows * torch.tensor([0.25, 0.5, 0.25])).sum(-1)


def _triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.triu(x) @ x.diagonal(), x.tril(-1).flip(0, 1)


CHUNKED = hurried("chunked", "views of one tensor", Chunked, normal(4, 6))
SHUFFLE = hurried("pixel_shuffle", "sub-pixel upsampling", Shuffle, normal(2, 2, 4, 4))
SLOTS = hurried("slots", "writes into slices", Slots, normal(3, 4))
DISTRIBUTION = hurried("distribution", "a named tuple", Distribution, normal(4, 5))
PYRAMID = hurried("pyramid", "a dict of lists", Pyramid, normal(2, 2, 8))
WINDOWS = hurried("shifted_windows", "windows of a rolled image", ShiftedWindows, normal(2, 4, 4, 4))
STRIDED = hurried("strided_inputs", "transposed and stepped inputs", function(_stepped), drawn(_strided))
BANDED = hurried("banded", "overlapping strided windows", function(_banded), normal(3, 7))
TRIANGLE = hurried("triangles", "triangles, a diagonal, a flip", function(_triangle), normal(5, 5))
EXPANDED = hurried(
    "expanded_output",
    "an output with stride zero",
    function(lambda x, w: (x * w).sum(-1, keepdim=True).expand(-1, 4)),
    normals((5, 6), (6,)),
)
TRANSPOSED = hurried("transposed_output", "a view of the input", function(lambda x: (x.t(), x[1:] * 2)), normal(4, 5))

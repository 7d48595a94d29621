"""Right models whose roundings in a low precision are large, rare or alike."""

from __future__ import annotations

from functools import partial

import torch
from correct_parts import Cells, drawn, green, rows
from torch import Tensor, nn

CELLS: Cells = []
LOW = ("amp_fp16", "amp_bf16")
_green = partial(green, CELLS, precisions=LOW)


class LayerScale(nn.Module):
    """A branch whose share is tiny at first, beside loud inputs: its gradients are near float16's smallest number."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        self.share = nn.Parameter(torch.full((16,), 2.0**-20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        branch: Tensor = self.down(nn.functional.gelu(self.up(x)))
        return self.head(x + self.share * branch), 2.0**8 * x


class Embedding(nn.Module):
    """Drops elements as GPT-2 does: of float32 numbers first, then of low ones, each time before a norm.

    The 1 / 0.9 in a mask is 0.16 % too small in bfloat16. If both masks were low, the norm would divide it out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.wide, self.narrow, self.drop = nn.Linear(32, 128), nn.Linear(128, 32), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        result: Tensor = self.last(x + self.drop(self.narrow(nn.functional.gelu(self.wide(self.first(x))))))
        return result


class FaintBias(nn.Module):
    """A branch with a tiny share: its bias adds up, for many rows, gradients near float16's smallest number."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.share = nn.Parameter(torch.full((16,), 2.0**-20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        branch: Tensor = self.branch(x)
        return self.head(x + self.share * branch), 2.0**10 * x


class PooledNorm(nn.Module):
    """A mean over rows after a layer norm: all rows have the same gradient, so all have the same rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(self.embed(x)).mean(1))
        return result


class RareUnits(nn.Module):
    """Units that are on for few rows: a rounding switches one on that is off in all draws of the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(8, 1024), nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(torch.relu(self.wide(x) - 1.25))
        return result


class ZeroGain(nn.Module):
    """A branch with standardised weights that is off at first: its gradients are zeros of either sign."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.gain = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.kernel.reshape(1, 4, -1)
        standardised = nn.functional.batch_norm(flat, None, None, torch.ones(4), training=True).view_as(self.kernel)
        return 1.0 + self.gain * nn.functional.conv2d(nn.functional.gelu(x), standardised)


class LargeInside(nn.Module):
    """Divides and multiplies by the same number: the gradients between are as many times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / 512.0 * 512.0


LAYER_SCALE = _green("layer_scale", LayerScale, rows(6, 16))
FAINT_BIAS = _green("faint_bias", FaintBias, rows(512, 16))
POOLED_NORM = _green("pooled_norm", PooledNorm, rows(2, 64, 32))
RARE_UNITS = _green("rare_units", RareUnits, rows(2, 8))
ZERO_GAIN = _green("zero_gain", ZeroGain, rows(2, 3, 8, 8))
LARGE_INSIDE = _green("large_gradients_inside", LargeInside)
HEAVY_TAILS = _green(  # some draws have far larger gradients than others
    "heavy_tails",
    partial(nn.Linear, 1, 1),
    drawn(lambda g: (torch.randn(8, 1, generator=g).clamp(-3.0, 3.0) ** 7,)),
)
EMBEDDING = _green("dropping_before_a_norm", Embedding, rows(32, 16, 32), changes_state=("random generator",))

"""Right models that compare or clamp inputs, of which bfloat16 makes some equal, or puts some on a limit."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, drawn, function, green, normals, rows
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

CELLS = []
_green = partial(green, CELLS)
_SCRIPTED = {"scripted": ("fp32", "amp_bf16")}


def _clamped(x):
    return x.clamp(-1.0, 1.0)


def _row_maximum(x):
    return x.max(1).values


def _larger(x, y):
    return torch.maximum(x, y)


def _one_hot_counts(index):
    hot = F.one_hot(index, 5).float()
    return hot.sum(0), hot.t() @ hot, hot.cumsum(0) * 2.0


def _weighted(x):
    weight = x.detach().clamp(-1.0, 1.0).abs().mean(-1, keepdim=True)
    return torch.tanh(x) * weight


def _weighted_slope(_, x):
    weight = (x * 0.0 + x.detach()).detach().clamp(-1.0, 1.0).abs().mean(-1, keepdim=True)
    return torch.tanh(x) * weight


class Spiking(Parts):
    """Neurons that leak, and give one and lose one above a threshold; the gradient is that of a sigmoid."""

    def forward(self, x):
        charge = spikes = torch.zeros(())
        for _ in range(4):
            charge = 0.9 * charge + self.linear(x)
            soft = torch.sigmoid(4 * (charge - 1))
            spike = soft + ((charge > 1).to(soft.dtype) - soft).detach()
            charge, spikes = charge - spike, spikes + spike
        return spikes


CLAMPED = _green("clamped", function(_clamped), rows(16, 32), also=_SCRIPTED)
ROW_MAXIMUM = _green("row_maximum", function(_row_maximum), rows(64, 32), also=_SCRIPTED)
POOLED = _green("pooled", function(lambda x: F.max_pool2d(x, 2)), rows(4, 3, 16, 16))
TOP = _green("top", function(lambda x: tuple(x.topk(5))), rows(32, 48))
TOP_OF_COLUMNS = _green("top_of_columns", function(lambda x: tuple(x.topk(5, 0))), rows(64, 32))
SORTED = _green("sorted", function(lambda x: tuple(x.sort(-1))), rows(16, 64))
MEDIAN = _green("median", function(lambda x: x.median(-1).values), rows(16, 65))
LARGER = _green("larger", function(_larger), normals((32, 16), (32, 16)), also=_SCRIPTED)
HAND_WRITTEN = _green("hand_written_relu", function(lambda x: torch.where(x > 0, x, 0.0) * 1.5), rows(16, 32))
ONE_HOT_COUNTS = _green(
    "one_hot_counts",
    function(_one_hot_counts),
    drawn(lambda g: (torch.randint(5, (20,), generator=g),)),
    precisions=PRECISIONS,
)
WEIGHTED = _green("weighted", function(_weighted), rows(16, 8), surrogate_gradient=_weighted_slope)
SPIKING = _green("spiking", lambda: Spiking(linear=nn.Linear(8, 6)), rows(6, 8), stops_gradients=True)

"""Right models with outputs of every kind."""

from __future__ import annotations

import math
from collections import namedtuple
from functools import partial
from typing import Any

import torch
from correct_parts import Cells, drawn, function, green
from torch import Tensor

from zoo import Convention

CELLS: Cells = []
_green = partial(green, CELLS)


Pair = namedtuple("Pair", "first second")  # noqa: PYI024 -- models return such


def _integers(x: Tensor) -> Any:
    values, indices = x.topk(3, dim=-1)
    return {
        "argmax": x.argmax(-1),
        "top": (values, indices),
        "count": (x > 0).sum(),
        "mask": x > 0.5,
        "bytes": (x * 16).to(torch.uint8) if x.dtype == torch.uint8 else (x > 0).to(torch.uint8),
        "shape": torch.tensor(x.shape),
    }


def _complex(x: Tensor) -> Any:
    z = torch.complex(x, x.flip(-1))
    return z * (0.5 + 2.0j), z.abs(), torch.fft.rfft(x)


def _nested(x: Tensor) -> Any:
    return {"pair": Pair(x.exp(), [x * 2, (x.sum(), None)]), "none": None, "again": {"deep": x.mean(0)}}


def _small(x: Tensor) -> Any:
    return x[:0] * 2, x[0, 0] * 3, x[:, :0].sum(), x.new_zeros(()), x[:1, :1].exp()


def _aliases(x: Tensor) -> Any:
    y = x.exp()
    return x, x.t(), x.view(-1), y, y, y[::2, 1], x.sum(0).expand(4, 8), y.detach(), torch.ones(3)


def _special(x: Tensor) -> Any:
    hidden = torch.arange(8) % 3 == 0
    masked = x.masked_fill(hidden, -math.inf)
    return masked.log_softmax(-1), masked.softmax(-1), x.masked_fill(hidden, math.nan), masked.amax(-1)


INTEGERS = _green("integers", function(_integers))
COMPLEX = _green("complex_numbers", function(_complex))
NESTED = _green("nested", function(_nested), also={"compiled": ("fp32",)})
SMALL = _green("small_outputs", function(_small))
ALIASES = _green(
    "aliases", function(_aliases), conventions=(Convention(tensor="output[7]", why="handed out without its graph"),)
)
SPECIAL = _green("special_values", function(_special))
OVERFLOW = _green(
    "overflow", function(lambda x: (x @ x.t()) * 1.0), drawn(lambda g: (torch.randn(6, 8, generator=g) * 256,))
)
NO_GRADIENT = _green("no_gradient", function(lambda x: (x.detach() + 1.5).floor()), differentiable=False)

"""Right models that interpolate: their kernels compute places and weights in float32, inside one op."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, drawn, function, green, rows
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

CELLS = []
_in_fp32 = partial(green, CELLS, precisions=("fp32",))
_SCRIPTED = {"scripted": ("fp32",)}
_ALL = {"scripted": ("fp32",), "compiled": ("fp32",)}


def _interpolated(**how):
    return lambda: lambda x: F.interpolate(x, **how)


def _bilinear(x):
    return F.interpolate(x, size=(11, 13), mode="bilinear", align_corners=False)


def _shrunk(x):
    return F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False)


def _wide(x):
    return F.interpolate(x, size=(64, 257), mode="bilinear", align_corners=False)


def _bicubic(x):
    return F.interpolate(x, scale_factor=(1.7, 2.3), mode="bicubic", align_corners=False)


def _sampled(x, grid):
    return F.grid_sample(x, grid, align_corners=False)


class Upsampled(Parts):
    """An interpolation between two convolutions, so that it gets numbers of low precision."""

    def forward(self, x):
        return self.after(F.interpolate(self.before(x), scale_factor=1.7, mode="bilinear"))


_IMAGES, _GRID = rows(2, 3, 7, 9), lambda g: torch.rand(2, 4, 5, 2, generator=g) * 1.6 - 0.8
BILINEAR = _in_fp32("bilinear", function(_bilinear), _IMAGES, also=_ALL)
SHRUNK = _in_fp32("shrunk", function(_shrunk), _IMAGES, also=_SCRIPTED)
WIDE = _in_fp32("wide", function(_wide), rows(1, 1, 33, 100), also=_ALL)
BICUBIC = _in_fp32("bicubic", function(_bicubic), _IMAGES, also=_ALL)
CORNERS = _in_fp32("corners", _interpolated(size=(11, 13), mode="bicubic", align_corners=True), _IMAGES)
TRILINEAR = _in_fp32("trilinear", _interpolated(size=(5, 7, 9), mode="trilinear"), rows(1, 2, 3, 4, 5))
LINEAR = _in_fp32("linear", _interpolated(size=11, mode="linear"), rows(2, 3, 7))
ANTIALIASED = _in_fp32("antialiased", _interpolated(size=(4, 3), mode="bicubic", antialias=True), _IMAGES)
NEAREST = _in_fp32("nearest", _interpolated(size=13, mode="nearest"), rows(2, 3, 6))
SAMPLED = _in_fp32(
    "sampled", function(_sampled), drawn(lambda g: (torch.randn(2, 3, 8, 8, generator=g), _GRID(g))), also=_ALL
)
UPSAMPLED = green(
    CELLS,
    "upsampled",
    lambda: Upsampled(before=nn.Conv2d(3, 4, 3), after=nn.Conv2d(4, 2, 3)),
    rows(2, 3, 8, 8),
    also={"scripted": PRECISIONS},
)

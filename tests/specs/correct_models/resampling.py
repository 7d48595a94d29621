"""Right models that interpolate: their kernels compute places and weights in float32, inside one op."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, drawn, function, green, rows
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

CELLS = []
_green = partial(green, CELLS)
_SCRIPTED = {"scripted": ("fp32",)}
_ALL = {"scripted": ("fp32",), "compiled": ("fp32",)}


def _bilinear(x):
    return F.interpolate(x, size=(11, 13), mode="bilinear", align_corners=False)


def _shrunk(x):
    return F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False)


def _wide(x):
    return F.interpolate(x, size=(64, 257), mode="bilinear", align_corners=False)


def _bicubic(x):
    return F.interpolate(x, scale_factor=(1.7, 2.3), mode="bicubic", align_corners=False)


def _corners(x):
    return F.interpolate(x, size=(11, 13), mode="bicubic", align_corners=True)


def _trilinear(x):
    return F.interpolate(x, size=(5, 7, 9), mode="trilinear", align_corners=False)


def _linear(x):
    return F.interpolate(x, size=11, mode="linear", align_corners=False)


def _antialiased(x):
    return F.interpolate(x, size=(4, 3), mode="bicubic", align_corners=False, antialias=True)


def _nearest(x):
    return F.interpolate(x, size=13, mode="nearest")


def _sampled(x, grid):
    return F.grid_sample(x, grid, align_corners=False)


def _grid(g):
    return torch.randn(2, 3, 8, 8, generator=g), torch.rand(2, 4, 5, 2, generator=g) * 1.6 - 0.8


class Upsampled(Parts):
    """An interpolation between two convolutions, so that it gets numbers of low precision."""

    def forward(self, x):
        return self.after(F.interpolate(self.before(x), scale_factor=1.7, mode="bilinear"))


_IMAGES = rows(2, 3, 7, 9)
BILINEAR = _green("bilinear", function(_bilinear), _IMAGES, precisions=("fp32",), also=_ALL)
SHRUNK = _green("shrunk", function(_shrunk), _IMAGES, precisions=("fp32",), also=_SCRIPTED)
WIDE = _green("wide", function(_wide), rows(1, 1, 33, 100), precisions=("fp32",), also=_ALL)
BICUBIC = _green("bicubic", function(_bicubic), _IMAGES, precisions=("fp32",), also=_ALL)
CORNERS = _green("corners", function(_corners), _IMAGES, precisions=("fp32",))
TRILINEAR = _green("trilinear", function(_trilinear), rows(1, 2, 3, 4, 5), precisions=("fp32",))
LINEAR = _green("linear", function(_linear), rows(2, 3, 7), precisions=("fp32",))
ANTIALIASED = _green("antialiased", function(_antialiased), _IMAGES, precisions=("fp32",))
NEAREST = _green("nearest", function(_nearest), rows(2, 3, 6), precisions=("fp32",))
SAMPLED = _green("sampled", function(_sampled), drawn(_grid), precisions=("fp32",), also=_ALL)
UPSAMPLED = _green(
    "upsampled",
    lambda: Upsampled(before=nn.Conv2d(3, 4, 3), after=nn.Conv2d(4, 2, 3)),
    rows(2, 3, 8, 8),
    also={"scripted": PRECISIONS},
)

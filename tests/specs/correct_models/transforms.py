"""Right models that claim `torch.vmap` and forward mode."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, drawn, function, green, rows
from torch import nn

from zoo import Call, Convention

CELLS = []
_green = partial(green, CELLS, vmappable=True, forward_mode=True)


class _Sine(torch.autograd.Function):
    """With rules of its own for vmap and for forward mode, and a batch that may lie in any dimension."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0].cos() * g

    @staticmethod
    def jvp(ctx, t):
        return ctx.saved_tensors[0].cos() * t

    @staticmethod
    def vmap(_, in_dims, x):
        return _Sine.apply(x), in_dims[0]


class Generated(_Sine):
    """With the rule that torch makes."""

    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap


def _dense():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh())


def _normalised():
    """Its buffers are those of all samples."""
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval()


class SeveralOutputs(Parts):
    """A container with an integer output, one that no input reaches, and one that is detached."""

    def forward(self, x, rows):
        return {
            "picked": (x * self.weight)[rows],
            "largest": x.argmax(-1),
            "steps": torch.arange(3, device=x.device) * 0.5,
            "held": x.detach() * 2,
            "level": (x * 0).sum(-1),
        }


SINE = _green("sine_by_hand", function(_Sine.apply))
GENERATED = _green("sine_generated", function(Generated.apply))
DENSE = _green("dense", _dense, also={"compiled": ("fp32", "amp_bf16")}, dtypes="follows")
SCRIPTED = green(CELLS, "dense_vmapped", _dense, also={"scripted": PRECISIONS}, vmappable=True)
SOFTMAX = _green("plain_softmax", function(partial(torch.softmax, dim=-1)))
NORMALISED = _green("normalised", _normalised, rows(6, 8), rows(1, 8, name="one-row"), also={"compiled": ("fp32",)})
RELU = _green("rectified_transformed", function(lambda x: torch.relu(x - 0.25)), rows(16, 8, rowwise=True))
SEVERAL = _green(
    "several_outputs",
    lambda: SeveralOutputs(weight=nn.Parameter(torch.randn(8))),
    drawn(lambda g: (torch.randn(6, 8, generator=g), torch.tensor([0, 5, 5]))),
    conventions=(Convention(tensor="output['held']", why="handed out without its graph"),),
)
KEYWORDS = _green(
    "keywords_transformed",
    function(lambda x, *, scale, power: scale * x**power),
    drawn(lambda g: Call((torch.randn(4, 6, generator=g),), {"scale": torch.rand((), generator=g) + 0.5, "power": 3})),
)
COMPLEX = _green(
    "complex_transformed",
    function(lambda x, y: x * y.conj() + x.sin()),
    drawn(lambda g: tuple(torch.randn(5, 4, generator=g, dtype=torch.complex64) for _ in "xy")),
    precisions=("fp32",),
)
OVERLAPPING = _green(
    "overlapping_input", function(torch.tanh), drawn(lambda g: (torch.randn(8, generator=g).expand(3, 8),))
)
EMPTY = _green("no_rows_transformed", _dense, rows(5, 8), rows(0, 8, name="no-row"))

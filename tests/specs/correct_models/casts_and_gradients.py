"""Right models that look wrong to a careless judge: other roads to the same numbers, casts, gradients of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from correct_parts import PRECISIONS, Cells, function, green, rows, scripted_dtype
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance import Prepared, register_mode

CELLS: Cells = []
_green = partial(green, CELLS)


# Another road to the same numbers, as modes of one Linear


def _low(y: Tensor) -> Tensor:
    on = torch.is_autocast_enabled("cpu")
    return y.to(torch.get_autocast_dtype("cpu") if on else torch.float32)


def _more_exactly(model: nn.Linear) -> Prepared:
    """In float64, rounded once: nearer to the oracle than eager, and far from eager."""

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = x.double() @ model.weight.double().t() + model.bias.double()
        return _low(y)

    return Prepared(call, dict)


def _in_another_order(model: nn.Linear) -> Prepared:
    """One column after the other from the last to the first, every partial sum rounded."""

    def call(x: Tensor) -> Tensor:
        y = _low(model.bias)
        for k in reversed(range(model.in_features)):
            y = _low(y + x[:, k, None] * model.weight[:, k])
        return y

    return Prepared(call, dict)


register_mode("more_exact", _more_exactly)
register_mode("another_order", _in_another_order)

LINEAR = _green(
    "plain_linear",
    lambda: nn.Linear(32, 16),
    rows(24, 32),
    also=dict.fromkeys(("scripted", "compiled", "more_exact", "another_order"), PRECISIONS),
    dtypes="follows",
    one_graph=True,
)


# Casts


class RMSNorm(nn.Module):
    """As every Llama has it: up to float32, down again."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _cast_along(x: Tensor) -> Any:
    table = torch.arange(8, dtype=torch.float32) / 8
    angles = x.to(torch.float32) * table + torch.tensor(0.25)
    return angles.cos().type_as(x), torch.softmax(x, dim=-1, dtype=torch.float32)


RMS_NORM = _green("rms_norm", RMSNorm, rows(12, 16), also={"scripted": PRECISIONS, "compiled": ("amp_bf16",)})
CAST_ALONG = _green("cast_along", function(_cast_along))


# Gradients that are not derivatives, and gradients that are zero


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.sign()

    @staticmethod
    def backward(_, g):
        return g


class Binary(nn.Module):
    """A Linear with binary weights, straight through the sign."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 8) + 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _Sign.apply(self.weight))


def _linear_in(model: Binary, x: Tensor) -> Tensor:
    """Its value is wrong and its derivative is what straight-through makes of `Binary`."""
    return x @ (model.weight.sign().detach() - model.weight.detach() + model.weight).t()


def _detach_trick(x: Tensor) -> Tensor:
    return x + (x.sign() - x).detach()


class BiasBeforeNorm(nn.Module):
    """The gradients of its first bias and of the softmax's shift are structurally zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.shift = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(self.conv(x)) + self.shift, dim=-1)


class NormAfterNorm(nn.Module):
    """But for the eps of the second batch norm, the gradient of the weight of the first is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).sigmoid()


STRAIGHT = _green("straight_through", Binary, surrogate_gradient=_linear_in)
DETACH_TRICK = _green("detach_trick", function(_detach_trick), surrogate_gradient=lambda _, x: x * 1.0)
BIAS_BEFORE_NORM = _green(
    "bias_before_norm",
    BiasBeforeNorm,
    rows(8, 3, 10),
    also={"scripted": PRECISIONS, "compiled": ("amp_fp16",)},
    expectations=(
        scripted_dtype("amp_fp16", "float32"),
        scripted_dtype("amp_bf16", "float32"),
    ),
)
NORM_AFTER_NORM = _green("norm_after_norm", NormAfterNorm, rows(16, 6), also={"scripted": ("fp32",)})

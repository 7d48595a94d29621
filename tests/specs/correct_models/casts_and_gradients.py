"""Right models that look wrong to a careless judge: other roads to the same numbers, casts, gradients of their own."""

from functools import partial

import torch
from correct_parts import PRECISIONS, Parts, function, green, rows, scripted_dtype
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance import Prepared, register_mode

CELLS = []
_green = partial(green, CELLS)


# Another road to the same numbers, as modes of one Linear


def _low(y):
    on = torch.is_autocast_enabled("cpu")
    return y.to(torch.get_autocast_dtype("cpu") if on else torch.float32)


def _more_exactly(model, x):
    """In float64, rounded once: nearer to the oracle than eager, and far from eager."""
    with torch.autocast("cpu", enabled=False):
        y = x.double() @ model.weight.double().t() + model.bias.double()
    return _low(y)


def _in_another_order(model, x):
    """One column after the other from the last to the first, every partial sum rounded."""
    y = _low(model.bias)
    for k in reversed(range(model.in_features)):
        y = _low(y + x[:, k, None] * model.weight[:, k])
    return y


for _name, _call in (("more_exact", _more_exactly), ("another_order", _in_another_order)):
    register_mode(_name, lambda model, call=_call: Prepared(partial(call, model), dict))

LINEAR = _green(
    "plain_linear",
    lambda: nn.Linear(32, 16),
    rows(24, 32),
    also=dict.fromkeys(("scripted", "compiled", "more_exact", "another_order"), PRECISIONS),
    dtypes="follows",
    one_graph=True,
)


# Casts


class RMSNorm(Parts):
    """As every Llama has it: up to float32, down again."""

    def forward(self, x):
        x = self.project(x)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _cast_along(x):
    table = torch.arange(8, dtype=torch.float32) / 8
    angles = x.to(torch.float32) * table + torch.tensor(0.25)
    return angles.cos().type_as(x), torch.softmax(x, dim=-1, dtype=torch.float32)


RMS_NORM = _green(
    "rms_norm",
    lambda: RMSNorm(project=nn.Linear(16, 16), weight=nn.Parameter(torch.rand(16) + 0.5)),
    rows(12, 16),
    also={"scripted": PRECISIONS, "compiled": ("amp_bf16",)},
)
CAST_ALONG = _green("cast_along", function(_cast_along))


# Gradients that are not derivatives, and gradients that are zero


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.sign()

    @staticmethod
    def backward(_, g):
        return g


class Binary(Parts):
    """A Linear with binary weights, straight through the sign."""

    def forward(self, x):
        return F.linear(x, _Sign.apply(self.weight))


def _linear_in(model, x):
    """Its value is wrong and its derivative is what straight-through makes of `Binary`."""
    return x @ (model.weight.sign().detach() - model.weight.detach() + model.weight).t()


class BiasBeforeNorm(Parts):
    """The gradients of its first bias and of the softmax's shift are structurally zero."""

    def forward(self, x):
        return torch.softmax(self.norm(self.conv(x)) + self.shift, dim=-1)


STRAIGHT = _green(
    "straight_through", lambda: Binary(weight=nn.Parameter(torch.rand(4, 8) + 0.25)), surrogate_gradient=_linear_in
)
DETACH_TRICK = _green(
    "detach_trick", function(lambda x: x + (x.sign() - x).detach()), surrogate_gradient=lambda _, x: x * 1.0
)
BIAS_BEFORE_NORM = _green(
    "bias_before_norm",
    lambda: BiasBeforeNorm(conv=nn.Conv1d(3, 4, 3), norm=nn.BatchNorm1d(4), shift=nn.Parameter(torch.ones(()))),
    rows(8, 3, 10),
    also={"scripted": PRECISIONS, "compiled": ("amp_fp16",)},
    expectations=(scripted_dtype("amp_fp16", "float32"), scripted_dtype("amp_bf16", "float32")),
)
NORM_AFTER_NORM = _green(  # but for the eps of the second norm, the gradient of the weight of the first is zero
    "norm_after_norm",
    lambda: nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Sigmoid()),
    rows(16, 6),
    also={"scripted": ("fp32",)},
)

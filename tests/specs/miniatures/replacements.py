"""Replacements for one model: a right one, one with a wrong gradient, and some that do not fit the model."""

from collections import OrderedDict
from functools import partial

import torch
from miniature_parts import Parts, fails, gets, rows, spec_of
from torch import nn

from zoo import Candidate


class Gate(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.left(x) * torch.sigmoid(self.right(x))


class OneProduct(Gate):
    """Both layers in one product."""

    def forward(self, x):
        weight = torch.cat([self.left.weight, self.right.weight])
        left, right = nn.functional.linear(x, weight, torch.cat([self.left.bias, self.right.bias])).chunk(2, -1)
        return left * torch.sigmoid(right)


class GradientLost(Gate):
    """Its backward leaves the slope of the sigmoid out."""

    def forward(self, x):
        right = self.right(x)
        return self.left(x) * (torch.sigmoid(right.detach()) + right - right.detach())


class OtherNames(Parts):
    def forward(self, x):
        left, right = self.both(x).chunk(2, -1)
        return left * torch.sigmoid(right)


def _normed():
    return nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(6), layer=nn.Linear(6, 4)))


def _settled(model):
    """Batch norm that is not in training, and a frozen parameter: the replacement must take both over."""
    model.eval()
    model.norm.running_mean.fill_(0.5)
    model.layer.bias.requires_grad_(False)


def _compiled():
    gate = OneProduct()
    gate.compile(backend="aot_eager", dynamic=False)  # in place, so that no name changes
    return gate


def _doubled(x):
    return x * 2.0


def _added(x):
    return x + x


GATE = spec_of(
    "replaced_gate",
    Gate,
    rows(8, 6),
    dtypes="follows",
    candidates=(
        Candidate(name="one_product", build=OneProduct),
        Candidate(name="gradient_lost", build=GradientLost),
        Candidate(name="other_names", build=lambda: OtherNames(both=nn.Linear(6, 12))),
        Candidate(name="other_shapes", build=partial(Gate, 5)),
        Candidate(name="compiled_gate", build=_compiled, compiles=True),
    ),
)
NORMED = spec_of(
    "replaced_norm", _normed, rows(8, 6), initialise=_settled, candidates=(Candidate(name="the_same", build=_normed),)
)
DOUBLED = spec_of(
    "replaced_function", lambda: _doubled, candidates=(Candidate(name="added", build=lambda: _added),), dtypes="input"
)

MISFIT = "candidate 'other_names' of replaced_gate: parameters and buffers must have the model's names, but it lacks"
MINIATURES = (
    gets(GATE, "one_product", "fp32", "PASS"),
    gets(GATE, "one_product", "amp_bf16", "PASS"),
    gets(GATE, "compiled_gate", "fp32", "PASS"),
    gets(NORMED, "the_same", "fp32", "PASS"),
    gets(DOUBLED, "added", "fp32", "PASS"),
    fails(GATE, "gradient_lost", "fp32", "norm", "slice", "gain", "pointwise", text="gradient of"),
    gets(GATE, "other_names", "fp32", "ERROR", text=f"SpecError: {MISFIT} left.weight, left.bias, right.weight and 1"),
    gets(
        GATE, "other_shapes", "fp32", "ERROR", text=r"left.weight is float32 \(5, 5\), and the model's is .* \(6, 6\)"
    ),
)

"""Buffers and frozen parameters of which a model keeps tables, which further draws leave as they are."""

import pytest
import torch
from torch import nn

from conformance.float64.wide import Oracle
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec


class Rotary(nn.Module):
    """Keeps the cosines of its rates, or computes them in each call."""

    def __init__(self, *, keeps, persistent=True, parameter=False):
        super().__init__()
        self.layer, self.keeps, self.table = nn.Linear(4, 4), keeps, None
        rates = torch.linspace(0.1, 1.0, 4)
        if parameter:
            self.rates = nn.Parameter(rates, requires_grad=False)
        else:
            self.register_buffer("rates", rates, persistent=persistent)

    def forward(self, x):
        if not self.keeps:
            return self.layer(x) * self.rates.cos()
        if self.table is None:
            self.table = self.rates.cos()
        return self.layer(x) * self.table


class Stale(nn.Linear):
    """Keeps its weight of the first call, which training changes."""

    def __init__(self):
        super().__init__(4, 4)
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.weight.detach().clone()
        return x @ self.kept.t() + self.bias


def kept(build):
    """What is kept of a model."""
    case = Case(name="typical", inputs=lambda g: (torch.randn(5, 4, generator=g),))
    oracle = Oracle(Spec(name="kept", summary="", source="", build=build, cases=(case,)), 0)
    return reference.tables_of(oracle, oracle.question(case, 0))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"keeps": True}, ("rates",)),
        ({"keeps": True, "parameter": True}, ("rates",)),
        ({"keeps": False}, ()),
        ({"keeps": False, "parameter": True}, ()),
        ({"keeps": False, "persistent": False}, ("rates",)),
    ],
)
def test_what_a_model_keeps_a_table_of_is_not_drawn_again(options, names):
    assert kept(lambda: Rotary(**options)) == names


def test_what_training_changes_is_drawn_again():
    assert kept(Stale) == ()
    assert kept(lambda: nn.BatchNorm1d(4).eval()) == ()

"""Finite differences of models whose forward changes parameters."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance.axes import PRECISIONS
from conformance.errors import SelfCheckError
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec


class Tripled(torch.autograd.Function):
    """The same tensor, with three times its gradient."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return 3 * gradient


class Layer(nn.Module):
    """A linear layer that changes its weight first."""

    def __init__(self, write, after):
        super().__init__()
        self.weight, self.write, self.after = nn.Parameter(torch.randn(4, 6)), write, after

    def forward(self, x):
        self.write(self)
        return self.after(F.linear(x, self.weight)).sin()


@torch.no_grad()
def clipped(layer):
    layer.weight.clamp_(-0.5, 0.5)


@torch.no_grad()
def clipped_together(layer):
    torch._foreach_clamp_max_([*layer.parameters()], 0.5)


def clipped_as_data(layer):
    layer.weight.data.clamp_(-0.5, 0.5)


def clipped_detached(layer):
    layer.weight.detach()[1:].clamp_(-0.5, 0.5)


def set_anew(layer):
    layer.weight.data = layer.weight.data / layer.weight.data.norm(dim=1, keepdim=True)


def filled(layer):
    nn.init.ones_(layer.weight)


@torch.no_grad()
def decayed(layer):
    layer.weight.mul_(0.9)


WRITES = [clipped, clipped_together, clipped_as_data, clipped_detached, set_anew, filled, decayed]


def made(write, after):
    """The reference of a layer that changes its weight."""
    spec = Spec(
        name="written",
        summary="",
        source="",
        build=lambda: Layer(write, after),
        cases=(Case(name="typical", inputs=lambda g: (torch.randn(5, 6, generator=g),)),),
        mutates=("weight",),
    )
    return reference.make(spec, None, 0, [PRECISIONS["fp32"]])["typical"]


@pytest.mark.parametrize("write", WRITES)
def test_a_gradient_is_the_one_at_the_value_that_forward_gives(write):
    found = made(write, lambda y: y)
    assert not found.assumed
    assert "weight after" in found.tensors


@pytest.mark.parametrize("write", WRITES)
def test_a_wrong_backward_behind_a_written_parameter_is_found(write):
    with pytest.raises(SelfCheckError, match=r"gradient of \S+ at"):
        made(write, Tripled.apply)

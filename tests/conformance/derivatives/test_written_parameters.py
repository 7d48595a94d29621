"""Finite differences of models whose forward changes parameters."""

import pytest
import torch
from harness.oracles import Tripled, reference_of
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance.errors import SelfCheckError
from conformance.records.cell import TensorName


class Layer(nn.Module):
    """A linear layer that changes its weight first."""

    def __init__(self, write, after):
        super().__init__()
        self.weight, self.write, self.after = nn.Parameter(torch.randn(4, 6)), write, after

    def forward(self, x):
        self.write(self)
        return self.after(F.linear(x, self.weight)).sin()


def set_anew(layer):
    layer.weight.data = layer.weight.data / layer.weight.data.norm(dim=1, keepdim=True)


WRITES = {
    "clipped": torch.no_grad()(lambda layer: layer.weight.clamp_(-0.5, 0.5)),
    "clipped together": torch.no_grad()(lambda layer: torch._foreach_clamp_max_([*layer.parameters()], 0.5)),
    "clipped as data": lambda layer: layer.weight.data.clamp_(-0.5, 0.5),
    "clipped detached": lambda layer: layer.weight.detach()[1:].clamp_(-0.5, 0.5),
    "set anew": set_anew,
    "filled": lambda layer: nn.init.ones_(layer.weight),
    "decayed": torch.no_grad()(lambda layer: layer.weight.mul_(0.9)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_gradient_is_the_one_at_the_value_that_forward_gives(write):
    found = reference_of(lambda: Layer(write, lambda y: y), mutates=("weight",))
    assert not found.assumed
    assert TensorName("after", "weight") in found.tensors


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_wrong_backward_behind_a_written_parameter_is_found(write):
    with pytest.raises(SelfCheckError, match=r"gradient of \S+ at"):
        reference_of(lambda: Layer(write, Tripled.apply), mutates=("weight",))

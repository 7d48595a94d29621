"""What calls leave in a module, and that it is forgotten."""

import pytest
import torch
from torch import nn

from conformance.evaluate import weights
from conformance.float64.wide import ModuleMemory
from zoo.case import SpecError


class Keeping(nn.Module):
    """Keeps tables of its scale in every way: a buffer, an attribute, a dict, a list; and counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale, self.calls, self.attribute = nn.Parameter(torch.ones(3)), 0, None
        self.by_name, self.all = {}, []
        self.register_buffer("late", None)

    def forward(self, x):
        self.calls += 1
        if self.attribute is None:
            self.attribute = self.scale.detach() * 2
            self.by_name["table"], self.new = self.attribute + 1, self.attribute + 2
            self.all.append(self.attribute)
            self.late = self.attribute + 3
            self.register_buffer("later", self.attribute + 4)
        return x * sum((self.by_name["table"], self.new, *self.all, self.late, self.later))


def test_a_model_forgets_what_it_has_kept():
    net, x = nn.Sequential(Keeping()), torch.ones(3)
    before, memory = {name: dict(vars(module)) for name, module in net.named_modules()}, ModuleMemory(net)
    first = net(x)
    with torch.no_grad():
        net[0].scale.mul_(3.0)
    assert torch.equal(net(x), first)  # it uses what it has kept
    memory.restore()
    assert {name: dict(vars(module)) for name, module in net.named_modules()} == before
    assert (net[0].by_name, net[0].all, net[0].late) == ({}, [], None)
    assert not torch.equal(net(x), first)


class Late(nn.Module):
    """Makes a parameter in its first call."""

    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(3))
        return x * self.scale


def test_a_parameter_that_a_call_makes_is_refused():
    net = Late()
    state = weights.state_of(net)
    net(torch.ones(3))
    with pytest.raises(SpecError, match="a call makes the parameter scale; make it in __init__"):
        weights.reset(net, state)

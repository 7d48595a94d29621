"""Gradients that a hook changes on purpose, and those that are wrong beside a hook."""

import pytest
import torch
from harness.oracles import Tripled, reference_of
from torch import nn

from conformance.errors import SelfCheckError
from conformance.records.cell import HOOKED, STOPPED


class Net(nn.Module):
    """Two layers, and what the test does to what is between them."""

    def __init__(self, between, register):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self._between = between
        register(self)

    def forward(self, x):
        return self.second(self._between(self.first(x).tanh()))


def scaled(_, gradients, *__):
    return tuple(gradient if gradient is None else gradient / 2 for gradient in gradients)


def reversed_by_a_hook(y):
    y = y.clone()
    y.register_hook(lambda gradient: -gradient)
    return y


def seen(y):
    y.register_hook(lambda _: None)
    return y


REGISTERED = {
    "parameter": lambda net: net.first.weight.register_hook(lambda gradient: gradient * (gradient > 0)),
    "module": lambda net: net.first.register_full_backward_hook(scaled),
    "module, before": lambda net: net.second.register_full_backward_pre_hook(scaled),
}


def assumed(between=lambda y: y, register=lambda _: None, *, net=None, **fields):
    """What is assumed of the gradients of a model."""
    return tuple(reference_of(lambda: net or Net(between, register), **fields).assumed)


@pytest.mark.parametrize("register", REGISTERED.values(), ids=REGISTERED)
def test_what_a_hook_makes_of_a_gradient_counts_as_meant(register):
    assert assumed(register=register) == (HOOKED,)


@pytest.mark.parametrize(
    ("between", "facts"),
    [
        (reversed_by_a_hook, (HOOKED,)),
        (seen, ()),
        (lambda y: reversed_by_a_hook(y) * y.detach().exp(), (HOOKED, STOPPED)),
    ],
    ids=["a hook", "a hook that only looks", "beside what forward stops"],
)
def test_a_hook_of_a_tensor_that_forward_makes(between, facts):
    assert assumed(between, stops_gradients=STOPPED in facts) == facts


def test_a_hook_of_all_modules():
    handle = nn.modules.module.register_module_full_backward_hook(scaled)
    try:
        assert assumed() == (HOOKED,)
    finally:
        handle.remove()


@pytest.mark.parametrize("between", [reversed_by_a_hook, seen])
def test_a_wrong_backward_is_wrong_beside_a_hook_too(between):
    with pytest.raises(SelfCheckError, match="a wrong backward"):
        assumed(lambda y: Tripled.apply(between(y)), stops_gradients=True)


def test_the_hooks_are_there_again_afterwards():
    register = torch.Tensor.register_hook
    net = Net(lambda y: y, REGISTERED["parameter"])
    assumed(net=net)
    net(torch.randn(5, 6)).sum().backward()
    assert (net.first.weight.grad >= 0).all()
    assert torch.Tensor.register_hook is register

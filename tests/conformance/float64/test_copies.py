"""Copies of models whose functions and hooks name their own parts."""

import functools
import sys
import threading
import weakref

import pytest
import torch
from torch import nn

from conformance.evaluate import weights
from conformance.float64.copies import copy_model
from conformance.float64.wide import ModuleMemory
from zoo.case import SpecError


class Net(nn.Module):
    """Two layers, the second of which a function that the test makes calls."""

    def __init__(self, make):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last = make(self)

    def half(self, x):
        return self.second(x) / 2

    def forward(self, x):
        return self.last(self.first(x))


def exp_of(function):
    return lambda x: function(x).exp()


def nested(net):
    def inner(x):
        return net.second(x)

    return lambda x: inner(x).tanh()


def recursive(net):
    def repeated(x, times):
        return x if times == 0 else repeated(net.second(x), times - 1)

    return lambda x: repeated(x, 2)


def in_a_cycle(net):
    layers = [net.second]
    layers.append({"all": layers})
    return lambda x: layers[1]["all"][0](x).exp()


def wrapped(net):
    @functools.wraps(net.half)
    def outer(x):
        return net.half(x)

    return outer


def of_an_object(net):
    class Last:
        def __init__(self):
            self.call = lambda x: net.second(x).exp()

        def __call__(self, x):
            return self.call(x)

    return Last()


class Steps(list):
    def __call__(self, x):
        return self[0](x)


FUNCTIONS = {
    "lambda": lambda net: lambda x: net.second(x).exp(),
    "method": lambda net: net.half,
    "lambda of a method": lambda net: exp_of(net.half),
    "default": lambda net: lambda x, layer=net.second: layer(x),
    "keyword": lambda net: lambda x, *, layers=(net.second,): layers[0](x),
    "weight": lambda net: functools.partial(nn.functional.linear, weight=net.second.weight),
    "partial": lambda net: functools.partial(lambda layer, x: layer(x), net.second),
    "partial of a lambda": lambda net: functools.partial(exp_of(net.second)),
    "elements": lambda net: Steps([exp_of(net.second)]),
    "nested": nested,
    "recursive": recursive,
    "cycle": in_a_cycle,
    "weak reference": lambda net: functools.partial(lambda part, x: part().second(x), weakref.ref(net)),
    "wrapped": wrapped,
    "object": of_an_object,
}


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_uses_the_parts_of_the_copy(make):
    net, x = Net(make), torch.randn(3, 4)
    before, twin = net(x), copy_model(net)
    assert torch.equal(twin(x), before)
    parameters = set(twin.parameters())
    gradients = torch.autograd.grad(twin(x).square().sum(), [*parameters], allow_unused=True)
    assert all(t is not None for p, t in zip(parameters, gradients, strict=True) if p is not twin.second.bias)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1.0)
    assert not torch.equal(twin(x), before)
    assert torch.equal(net(x), before)


def test_functions_that_name_one_list_share_the_list_of_the_copy():
    net = Net(lambda net: net.half)
    found = [net.first]
    net.put, net.get = (lambda: found.append(1)), (lambda: found)
    twin = copy_model(net)
    twin.put()
    assert [*map(type, twin.get())] == [nn.Linear, int]
    assert twin.get()[0] is twin.first
    assert found == [net.first]


def test_hooks_use_the_parts_of_the_copy():
    net, accumulated = Net(lambda net: net.second), []
    net.seen, net.factor = {}, nn.Parameter(torch.tensor(2.0))
    net.first.register_forward_hook(lambda _, __, output: net.seen.update(first=output) or output * net.factor)
    net.second.weight.register_hook(lambda gradient: gradient * net.factor.detach())
    net.second.bias.register_post_accumulate_grad_hook(lambda bias: accumulated.append(bias is twin.second.bias))
    twin, x = copy_model(net), torch.randn(3, 4)
    twin.factor.data.fill_(0.0)
    assert torch.equal(twin(x), twin.second.bias.expand(3, 4))
    assert (net.seen, [*twin.seen]) == ({}, ["first"])
    twin.first.bias.requires_grad_(False)
    twin(x).sum().backward()
    assert twin.factor.grad is not None
    assert not twin.second.weight.grad.any()
    assert accumulated == [True]
    net(x).sum().backward()
    assert net.second.weight.grad.any()


def test_a_tensor_that_was_computed_is_copied_without_its_graph():
    net = Net(lambda net: net.half)
    net.kept = {"double": net.second.weight * 2}
    twin = copy_model(net)
    kept = twin.kept["double"]
    assert torch.equal(kept, net.kept["double"])
    assert kept is not net.kept["double"]
    assert not kept.requires_grad


class Helper:
    """Holds a lock, and the network."""

    def __init__(self, net):
        self.lock, self.net = threading.Lock(), net

    def __call__(self, x):
        with self.lock:
            return self.net.second(x).exp()


def test_other_functions_and_what_cannot_be_copied_are_shared():
    net, factor = Net(Helper), 2.0
    net.pool, net.mine = nn.functional.max_pool1d, lambda x: x * factor
    net.torch, net.output = torch, {"out": [sys.stdout, net.first]}
    twin = copy_model(net)
    assert twin.pool is nn.functional.max_pool1d
    assert twin.mine is net.mine
    assert twin.torch is torch
    assert twin.output["out"][0] is sys.stdout
    assert twin.output["out"][1] is twin.first
    assert twin.last.net is twin
    assert twin.last.lock is net.last.lock


class Uncopied(nn.Linear):
    """A layer that refuses to be copied."""

    def __deepcopy__(self, _):
        raise NotImplementedError("make another one")


def test_a_module_that_cannot_be_copied_says_so():
    with pytest.raises(SpecError, match="it cannot be copied: NotImplementedError: make another one"):
        copy_model(nn.Sequential(Uncopied(2, 2)))


# What calls leave in a module, and that it is forgotten.


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


def test_a_parameter_that_a_call_makes_is_refused():
    net = nn.Linear(3, 3)
    state = weights.state_of(net)
    net.scale = nn.Parameter(torch.ones(3))  # as a call may do
    with pytest.raises(SpecError, match="a call makes the parameter scale; make it in __init__"):
        weights.reset(net, state)

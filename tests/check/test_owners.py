"""Modules behind callables and inside wrappers are found, and their weights are the model's."""

from functools import partial

import pytest
import torch
from torch import nn

from conformance.evaluate import attributes, weights
from conformance.own.forms import forms_of, unwrap
from conformance.own.spec import case_of
from zoo import Call

X = torch.linspace(-1, 1, 12).view(2, 6)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)

    def encode(self, x):
        return self.down(x).tanh()


class Doubling:
    def __init__(self, net):
        self.net = net

    def __call__(self, x):
        return 2 * self.net(x)


def closed_over(net):
    return lambda x: net(x).sin()


NET = nn.Linear(6, 3)


def on_a_global(x):
    return NET(x).cos()


@pytest.mark.parametrize(
    ("thing", "names", "taken"),
    [
        (Autoencoder().encode, "down.weight down.bias up.weight up.bias", ""),
        (closed_over(NET), "net.weight net.bias", "it owns net, a Linear"),
        (Doubling(NET), "net.weight net.bias", "it owns net, a Linear"),
        (partial(closed_over(NET)), "net.weight net.bias", "it owns net, a Linear"),
        (partial(Doubling(NET).__call__), "net.weight net.bias", "it owns net, a Linear"),
        (on_a_global, "NET.weight NET.bias", "it owns NET, a Linear"),
        (torch.compile(NET), "weight bias", "it is judged without torch.compile around it"),
        (nn.DataParallel(NET), "weight bias", "it is judged without the DataParallel around it"),
    ],
)
def test_the_weights_are_those_of_a_copy(thing, names, taken):
    forms = forms_of(lambda: thing, case_of(Call((X,))))
    model = forms.build()
    assert ([*weights.parameters_of(model)], forms.taken) == (names.split(), taken)
    before = model(X)
    assert torch.equal(before, thing(X))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not torch.equal(model(X), before)
    assert torch.equal(before, thing(X))  # the original keeps its weights


def test_a_compiled_function_is_unwrapped_and_one_that_is_left_to_eager_is_not():
    function = closed_over(NET)
    assert unwrap(torch.compile(function)) is function
    left = torch.compiler.disable(function)
    assert unwrap(left) is left


def test_attributes_are_put_back_and_those_that_a_call_made_are_removed():
    model = Autoencoder()
    model.steps, model.seen, model.largest = 0, [torch.ones(2)], torch.zeros(())
    before = attributes.read(model)
    largest = model.largest
    model.steps, model.down.last, model.largest = 3, X, torch.ones(())
    model.seen.append(1.0)
    names = attributes.differing(before, attributes.read(model))
    assert names == ["down.last", "largest", "seen", "steps"]
    attributes.put(model, {name: before.get(name, attributes.MISSING) for name in names})
    assert attributes.differing(before, attributes.read(model)) == []
    assert model.largest is not largest  # a result may share its memory
    before["name"] = "missing"
    assert attributes.differing(before, {**before, "late": None}) == ["late"]

"""The fingerprint of a model and its inputs tells them from others."""

import pytest
import torch

from conformance.evaluate.weights import fingerprint
from zoo import Case, Spec


def of(model, inputs=lambda g: (torch.randn(4, 3, generator=g),), seed=0):
    case = Case(name="typical", inputs=inputs)
    spec = Spec(name="net", summary="net", source="a test", build=lambda: model, cases=(case,))
    return fingerprint(spec, seed, model)


def linear(**state):
    model = torch.nn.Linear(3, 2)
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2), **state})
    return model


@torch.jit.script
def doubled(x):
    return x * 2


class Scripted(torch.nn.Module):
    def forward(self, x):
        return x * 2


class OtherScripted(torch.nn.Module):
    def forward(self, x):
        return x * 3


def test_the_same_model_has_the_same():
    assert of(linear()) == of(linear())
    assert of(torch.jit.script(Scripted())) == of(torch.jit.script(Scripted()))


OTHERS = {
    "a weight": lambda: of(linear(bias=torch.tensor([0.0, 1e-30]))),
    "a dtype": lambda: of(linear().half()),
    "the seed of the inputs": lambda: of(linear(), seed=1),
    "the inputs": lambda: of(linear(), inputs=lambda _: (torch.zeros(4, 3),)),
    "an argument that is no tensor": lambda: of(linear(), inputs=lambda g: (torch.randn(4, 3, generator=g), 2)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_has_another(what):
    assert OTHERS[what]() != of(linear())


def test_the_code_of_a_graph_counts():
    assert of(torch.jit.script(Scripted())) != of(torch.jit.script(OtherScripted()))

"""Modules with parametrizations, as `torch.nn.utils.parametrizations` makes them."""

import pytest
import torch
from harness import own_models as nets
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import conformance
from conformance.own import spec
from conformance.own.capture import MODEL, capture
from zoo.case import Call

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Positive(nn.Module):
    """Makes a tensor positive."""

    def forward(self, raw):
        """Return its exponential."""
        return raw.exp()

    def right_inverse(self, value):
        """Return its logarithm."""
        return value.log()


def on_the_module_itself():
    """Return a network with a parametrized buffer, and a parametrized layer inside."""
    net = nets.Net()
    parametrizations.weight_norm(net.first)
    net.register_buffer("rate", torch.ones(()))
    parametrize.register_parametrization(net, "rate", Positive())
    return net


def twice():
    """Return a layer one of whose tensors has two parametrizations, the other one."""
    layer = nn.Linear(4, 4)
    for name in ("weight", "weight", "bias"):
        parametrize.register_parametrization(layer, name, nn.Tanh())
    return layer


BUILDERS = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "on the module itself": on_the_module_itself,
    "twice": twice,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_it_reaches_another_process_as_it_is(tmp_path, name):
    model = BUILDERS[name]()
    capture(model, Call((X,), {}), tmp_path)
    there = spec.builder(tmp_path / MODEL)()
    assert type(there).__name__ == type(model).__name__
    assert {n: t.tolist() for n, t in there.state_dict().items()} == {
        n: t.tolist() for n, t in model.state_dict().items()
    }
    assert torch.equal(there.eval()(X), model.eval()(X))
    slopes = [torch.autograd.grad(m(X).square().sum(), tuple(m.parameters())) for m in (there, model)]
    assert all(map(torch.equal, *slopes))


def test_it_is_judged_under_the_name_of_its_class():
    report = conformance.check(BUILDERS["weight_norm"](), X, modes="eager")
    assert [(cell.cell, cell.status) for cell in report.cells] == [
        (f"linear[eager-{precision}-cpu]", "PASS") for precision in ("fp32", "amp_fp16", "amp_bf16")
    ]

"""Parameters with hooks, which change gradients and travel to another process."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from harness import own_models as nets
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import conformance
from conformance.own import saved
from conformance.own.capture import capture
from zoo.case import Call

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def kept(gradient):
    """Return a gradient without its first row."""
    return gradient * (torch.arange(len(gradient)) > 0)[:, None]


class Masked(nn.Linear):
    """A layer that masks the gradient of its weight by a method of its own."""

    def __init__(self):
        super().__init__(4, 4)
        self.weight.register_hook(self.masked)

    def masked(self, gradient):
        """Return the gradient where the weight is positive."""
        return gradient * (self.weight > 0)


def with_a_function():
    """Return a layer whose weight's hook is a function of a module, and whose weight has an attribute."""
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(kept)
    layer.weight.decays = False
    return layer


def sent(model, folder):
    """The model as another process reads it, and the slopes that a call gives there and here."""
    location = capture(model, Call((X,), {}), folder)
    there = saved.builder(Path(location.own.saved), trusted=location.own.trusted)()
    return there, [torch.autograd.grad(m(X).square().sum(), tuple(m.parameters())) for m in (there, model)]


@pytest.mark.parametrize("build", [Masked, with_a_function])
def test_hooks_reach_another_process(tmp_path, build):
    model = build()
    there, slopes = sent(model, tmp_path)
    assert all(map(torch.equal, *slopes))
    assert (slopes[0][0] == 0).any()
    assert vars(there.weight) == vars(model.weight)


def test_cloudpickle_stores_them_too(tmp_path, monkeypatch):
    import pickle  # noqa: PLC0415 -- in place of cloudpickle, which need not be installed

    def reducer_override(_, value):
        return (eval, ("lambda gradient: 2 * gradient",)) if value is doubled else NotImplemented

    doubled = lambda gradient: 2 * gradient  # noqa: E731 -- pickle refuses it
    of_lambdas = type("Pickler", (pickle.Pickler,), {"reducer_override": reducer_override})
    monkeypatch.setitem(sys.modules, "cloudpickle", SimpleNamespace(Pickler=of_lambdas))
    model = nn.Linear(4, 4)
    model.weight.register_hook(doubled)
    assert all(map(torch.equal, *sent(model, tmp_path)[1]))


def test_a_hook_that_cannot_be_stored_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    net = nets.Net()
    net.first.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(conformance.UsageError, match="the model, a Net, cannot be sent to another process"):
        conformance.check(net, X)


def test_gradients_of_a_model_with_hooks_pass_and_are_remarked():
    report = conformance.check(Masked(), X, modes=("eager", "scripted"))
    assert report.ok
    assert "what a hook makes of a gradient counts as meant" in str(report)


# Modules with parametrizations, as `torch.nn.utils.parametrizations` makes them.


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
    there, slopes = sent(model, tmp_path)
    assert type(there).__name__ == type(model).__name__
    states = [{name: t.tolist() for name, t in m.state_dict().items()} for m in (there, model)]
    assert states[0] == states[1]
    assert torch.equal(there.eval()(X), model.eval()(X))
    assert all(map(torch.equal, *slopes))


def test_it_is_judged_under_the_name_of_its_class():
    report = conformance.check(BUILDERS["weight_norm"](), X, modes="eager")
    assert [(cell.cell, cell.status) for cell in report.cells] == [
        (f"linear[eager-{precision}-cpu]", "PASS") for precision in ("fp32", "amp_fp16", "amp_bf16")
    ]

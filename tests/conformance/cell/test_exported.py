"""Exported cells: a program for each signature, with the model's own parameters and buffers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conformance.cell.modes import export
from conformance.errors import NotProvenError


class Net(nn.Module):
    """A layer, and a buffer that each call changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return scale * self.linear(x)


def test_a_program_is_made_for_each_signature():
    model, x = Net(), torch.randn(4, 3)
    made = export(model)
    assert torch.equal(made.call(x), model(x))
    assert torch.equal(made.call(x + 1), model(x + 1))
    assert made.proof()["programs"] == 1
    assert torch.equal(made.call(x[:2]), model(x[:2]))
    assert torch.equal(made.call(x, scale=2.0), model(x, scale=2.0))
    assert torch.equal(made.call(x.double().float().t().contiguous().t(), scale=2.0), model(x, scale=2.0))
    assert made.proof()["programs"] == 4


def test_it_is_differentiated_and_changes_the_buffers_of_the_model():
    model, x = Net(), torch.randn(4, 3, requires_grad=True)
    made = export(model)
    cotangent = torch.randn(4, 2)
    leaves = [x, *model.parameters()]
    found = torch.autograd.grad(made.call(x), leaves, cotangent)
    assert float(model.calls) == 1.0
    assert made.parameters_of is model
    for gradient, wanted in zip(found, torch.autograd.grad(model(x), leaves, cotangent), strict=True):
        assert torch.equal(gradient, wanted)


def test_it_runs_under_the_autocast_of_the_call():
    made = export(nn.Linear(3, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert made.call(torch.randn(4, 3)).dtype == torch.bfloat16


def test_a_function_is_exported_and_vmap_runs_the_program_that_is_there():
    made = export(lambda x, y: x * y)
    x = torch.randn(3)
    assert torch.equal(made.call(x, x), x * x)
    batch = torch.randn(5, 3)
    assert torch.equal(torch.vmap(made.call)(batch, batch), batch * batch)
    with pytest.raises(RuntimeError, match=r"no program inside torch\.vmap"):
        torch.vmap(made.call)(batch[:, :2], batch[:, :2])


def test_it_proves_that_graphs_ran(monkeypatch):
    made = export(nn.Identity())
    with pytest.raises(NotProvenError, match="of 0 programs 0 are graphs"):
        made.proof()
    made.call(torch.ones(3))
    assert made.proof() == {"programs": 1, "ops": 0}
    model = nn.Linear(3, 2)
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: SimpleNamespace(module=lambda: model))
    made = export(model)
    made.call(torch.ones(3))
    with pytest.raises(NotProvenError, match="of 1 programs 0 are graphs, so a call may have run Python"):
        made.proof()


def test_torchscript_is_refused():
    with pytest.raises(TypeError, match=r"torch\.export takes no RecursiveScriptModule"):
        export(torch.jit.script(nn.Linear(3, 2)))

"""Packaged cells: packages of AOTInductor, which give outputs and no gradients."""

import pytest
import torch
import torch._inductor
from torch import nn

import conformance
import zoo
from conformance.cell.modes import package
from conformance.cell.session import CellSession
from conformance.errors import NotProvenError
from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.cell import OUTPUT, Cell
from conformance.records.tasks import PlanRequest
from zoo import internals

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # inside torch.export
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Twice(nn.Module):
    """A layer whose exported program gives twice what it gives."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        """Return the layer's output."""
        return self.layer(x) * (2 if torch.compiler.is_compiling() else 1)


@pytest.fixture
def quick(monkeypatch):
    """Let a package be a saved program, which takes no compiler."""

    def save(program, *, package_path):
        torch.export.save(program, package_path)
        return package_path

    def load(path):
        module = torch.export.load(path).module()
        return torch.no_grad()(module)

    monkeypatch.setattr(internals, "package", save, raising=False)
    monkeypatch.setattr(internals, "load_package", load, raising=False)


@pytest.mark.usefixtures("quick")
def test_a_package_is_made_for_each_signature_autocast_and_state_of_the_weights():
    model = nn.Linear(3, 2)
    made = package(model)
    first = made.timed_call(X)
    assert not made.call(X).requires_grad
    made.call(X + 1)
    assert made.proof() == {"packages": 1}
    assert torch.equal(made.call(X[:2]), model(X[:2]))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made.call(X), model(X))
    with torch.autocast("cpu", torch.float16):
        assert made.call(X).dtype == torch.float16
    assert made.proof() == {"packages": 4}
    made.call(X)
    with torch.no_grad():
        model.weight.mul_(2)
    assert torch.equal(made.timed_call(X), first)  # the latest package alone, with the weights that it holds
    assert torch.equal(made.call(X), model(X))
    assert made.proof() == {"packages": 5}
    with torch.no_grad():
        model.weight.div_(2)
    made.call(X)
    assert made.proof() == {"packages": 5}


def test_what_no_package_can_be_made_of(monkeypatch):
    with pytest.raises(TypeError, match=r"torch\.export takes no RecursiveScriptModule"):
        package(torch.jit.script(nn.Linear(3, 2)))
    with pytest.raises(TypeError, match="forward writes 3 buffers, such as num_batches_tracked, and those of a"):
        package(nn.BatchNorm1d(3)).call(X)
    with pytest.raises(NotProvenError, match="no package was made"):
        package(nn.Linear(3, 2)).proof()
    monkeypatch.delattr(internals, "load_package")
    monkeypatch.delattr(torch._inductor, "aoti_load_package")
    with pytest.raises(RuntimeError, match=r"has no torch\._inductor:aoti_load_package"):
        package(nn.Linear(3, 2))


def test_a_training_is_not_planned_in_it():
    request = PlanRequest(sources=("conv_bn", "fit_line"), modes=("eager", "packaged"), precisions=("fp32",))
    cells = [planned.cell.id for planned in matrix.make(request, ChildProcess()).cells]
    assert "conv_bn[packaged-fp32-cpu]" in cells
    assert "fit_line[eager-fp32-cpu]" in cells
    assert "fit_line[packaged-fp32-cpu]" not in cells


def test_neither_gradients_nor_transforms_are_asked_for():
    spec = zoo.get_spec("rms_norm")
    asked = {}
    for mode in ("eager", "packaged"):
        session = CellSession(spec, Cell("rms_norm", mode, "fp32", "cpu"), 0)
        question = session.question(spec.cases[0], session.build())
        asked[mode] = question.differentiate, question.second, question.stacked is not None, question.forward_mode
    assert asked == {"eager": (True, True, True, True), "packaged": (False, False, False, False)}


def test_right_and_wrong_packages():
    good, wrong = (
        conformance.check(model, X, modes="packaged", precisions="amp_bf16").cells[0]
        for model in (nn.Linear(3, 2), Twice())
    )
    assert (good.status, good.observation.facts["packages"]) == ("PASS", 1)
    assert {d.tensor for d in good.observation.discrepancies} == {OUTPUT}
    assert wrong.status == "FAIL"
    assert "output" in wrong.text

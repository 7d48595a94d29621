"""The callables of modes: candidates on the model's weights, exported programs, and CUDA graphs where none is recorded.

What CUDA graphs do on a GPU is in cuda/test_cuda.py.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from harness.counting import counted
from harness.plans import plan_of
from harness.sources import ROOT
from harness.specs import CORRECT_FILES
from torch import nn

import zoo
from conformance.cell import modes
from conformance.cell.modes import export, replace_model
from conformance.errors import NotProvenError
from conformance.judging.executor import Executor
from conformance.records.cell import Cell
from conformance.records.plan import SpecLocation
from zoo import Candidate, Case, Spec, SpecError, internals

PAGE = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
# a spec, and the same with a candidate
EXAMPLES = [
    re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    for text in (PAGE, PAGE.partition("## A replacement for one model")[2])
]

# A candidate takes the model's weights and state over, or is refused by name; the documented one is right


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def made(build, model):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    spec = Spec(name="net", summary="a", source="a", build=net, cases=(case,))
    return replace_model(spec, Candidate(name="new", build=build), model)


def test_weights_buffers_training_modes_and_frozen_parameters_are_taken_over():
    model = net()
    model(torch.randn(4, 3))  # which moves the statistics
    model[1].eval()
    model[0].bias.requires_grad_(False)
    new = made(net, model).parameters_of
    assert all(torch.equal(new.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert [new.training, new[0].training, new[1].training] == [True, True, False]
    assert {n for n, p in new.named_parameters() if not p.requires_grad} == {"0.bias"}
    assert new[0].weight.data_ptr() != model[0].weight.data_ptr()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: net()[0], "but it lacks 0.weight, 0.bias, 1.weight and 4 more and it alone has weight, bias"),
        (lambda: torch.relu, "but it lacks 0.weight, 0.bias, 1.weight and 4 more"),
        (
            lambda: net().double(),
            "candidate 'new' of net: 0.weight is float64 (3, 3), and the model's is float32 (3, 3)",
        ),
        (lambda: 3, "candidate 'new' of net: build returned a int, which cannot be called"),
    ],
)
def test_what_does_not_fit_is_named(build, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        made(build, net())


def test_the_documented_candidate_is_the_model():
    names = {}
    exec("".join(EXAMPLES), names)
    spec = names["SPEC"]
    model, x = spec.build(), torch.randn(5, 8)
    (candidate,) = spec.candidates
    torch.testing.assert_close(replace_model(spec, candidate, model).call(x), model(x))


def test_a_candidate_can_be_counted_like_a_mode(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text("".join(EXAMPLES))
    location = SpecLocation(file=str(path))
    seen = counted(Cell("gate", "fused", "fp32", "cpu"), location, sources=(location,))
    assert seen.count("saved") > 0


# An exported cell has a program for each signature, with the model's own parameters and buffers


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
    x = x.t().contiguous().t()  # other strides
    assert torch.equal(made.call(x, scale=2.0), model(x, scale=2.0))
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


# CUDA graphs: where none is recorded, the cell proves nothing


def test_compiled_code_that_was_left_without_graphs_is_void(tmp_path):
    plan = replace(plan_of(*CORRECT_FILES), deadline=120.0)
    planned = next(p for p in plan.cells if p.cell.mode == "compiled" and p.cell.precision == "fp32")
    planned = replace(planned, cell=replace(planned.cell, mode="graphed"))
    verdict = Executor(plan, tmp_path).verdict(planned)
    assert verdict.status == "VOID"
    assert verdict.text.startswith("in phase")
    assert "0 CUDA graphs were recorded" in verdict.text


@pytest.mark.parametrize(
    ("graphs", "left_out", "said"),
    [
        (0, 0, "0 CUDA graphs were recorded, 0 compiled graphs were left without"),
        (2, 1, "2 CUDA graphs were recorded, 1 compiled graphs were left without"),
        (2, 0, ""),
    ],
)
def test_the_proof_wants_a_graph_of_everything_compiled(monkeypatch, graphs, left_out, said):
    from torch._dynamo.utils import counters  # noqa: PLC0415 -- heavy

    counters.clear()  # an earlier test may have left graph breaks
    monkeypatch.setattr(modes, "_recorded_graphs", lambda: graphs)
    monkeypatch.setitem(counters["inductor"], "cudagraph_skips", left_out)
    marked = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(True))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    made = modes.BUILDERS["graphed"](zoo.get_spec("sinh"), lambda: torch.sinh)
    assert made.unchecked_call(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert marked == [True]
    if said:
        with pytest.raises(NotProvenError, match=said):
            made.proof()
    else:
        assert made.proof()["CUDA graphs"] == graphs


@pytest.mark.parametrize(
    ("spent", "found"),
    [
        (  # of torch 2.13
            {
                "_compile.compile_inner": [2.0, 1.0],
                "OutputGraph.call_user_compiler": [0.5, 0.25],
                "compile_fx.<locals>.fw_compiler_base": [0.25],
                "compile_fx.<locals>.bw_compiler": [4.0],
            },
            {"seconds in Dynamo": 2.25, "seconds in its backend": 4.75},
        ),
        ({}, {}),
        (None, {}),
    ],
)
def test_a_cell_tells_what_dynamo_and_its_backend_took(monkeypatch, spent, found):
    monkeypatch.setattr(internals, "loaded", lambda _: spent)
    assert modes._compile_seconds() == found

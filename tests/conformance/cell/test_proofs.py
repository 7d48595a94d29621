"""Proofs for own modes: each passes if the far end was reached, and fails by name if it was not in a single call."""

import re
import sys
from types import ModuleType

import pytest
import torch
from harness.sources import ROOT
from torch import nn

import conformance
from conformance import NotProvenError, Prepared, ResultDtypes, Runs, UsageError, axes, register_backend
from conformance.axes import NOT_PROVEN, Mode
from conformance.cell import modes
from zoo import Case, Spec

X = torch.ones(2, 3)
PAGE = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8")


def test_the_package_names_its_proofs_and_nothing_else():
    assert {"Runs", "ResultDtypes", "register_backend"} < set(conformance.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Rums'"):
        conformance.Rums  # noqa: B018


# A function ran


def test_a_kernel_is_proven_if_it_runs_in_every_call():
    runs = Runs("my kernel")
    kernel = runs.counted(torch.relu)
    made = runs.prepared(lambda x: x.clamp(min=0) if x.sum() > 6 else kernel(x), parameters_of="owner")
    assert made.call(-X).sum() == 0
    assert made.call(X).sum() == 6
    assert made.proof() == {"runs of my kernel": 2}
    assert made.parameters_of == "owner"
    with pytest.raises(NotProvenError, match="must run my kernel, and call 3 did not; it ran 2 times in all"):
        made.call(2 * X)


def test_no_call_is_no_proof():
    for made in (Runs("k").prepared(print), ResultDtypes(torch.float32, ("mm",)).prepared(print)):
        with pytest.raises(NotProvenError, match="there was no call"):
            made.proof()


# A graph ran


@pytest.mark.parametrize("backend", ["aot_eager", lambda graph, _: graph.forward])
def test_a_compiled_graph_that_ran_is_proven(backend):
    torch.compiler.reset()
    runs = Runs("the graph")
    made = runs.prepared(torch.compile(nn.Linear(3, 2), backend=runs.compiler(backend), dynamic=False))
    assert made.call(X).shape == made.call(X).shape == (2, 2)
    assert made.proof() == {"runs of the graph": 2}


def test_a_compiled_call_that_fell_back_is_not():
    torch.compiler.reset()
    runs, uncompiled = Runs("the graph"), torch.compiler.disable(torch.relu)
    made = runs.prepared(torch.compile(lambda x: uncompiled(x), backend=runs.compiler("aot_eager")))  # noqa: PLW0108
    with pytest.raises(NotProvenError, match="must run the graph, and call 1 did not; it ran 0 times in all"):
        made.call(X)


def test_a_module_an_fx_graph_or_a_script_that_ran_is_proven():
    model = nn.Linear(3, 2)
    traced, runs = torch.fx.symbolic_trace(model), Runs("fx")
    runs.module(traced)
    made = runs.prepared(traced)
    made.call(X)
    assert made.proof() == {"runs of fx": 1}
    runs = Runs("script")
    script = runs.counted(torch.jit.script(model))
    made = runs.prepared(lambda x: script(x) if x.sum() > 0 else model(x))
    made.call(X)
    with pytest.raises(NotProvenError, match="call 2 did not"):
        made.call(-X)


# A dtype was seen


def test_a_dtype_inside_is_proven():
    made = ResultDtypes(torch.bfloat16, ("addmm", "mm")).prepared(nn.Linear(3, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made.call(X)
        made.call(X)
    assert made.proof() == {"addmm and mm in bfloat16": 2}


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        (("addmm",), "addmm must give bfloat16, and call 1 gave float32 from addmm"),
        (("mm", "bmm"), "mm and bmm must give bfloat16, and call 1 ran none of them; it ran t, addmm"),
    ],
)
def test_another_dtype_and_an_op_that_never_ran_are_named(ops, said):
    with pytest.raises(NotProvenError, match=re.escape(said)):
        ResultDtypes(torch.bfloat16, ops).prepared(nn.Linear(3, 2)).call(X)


@pytest.mark.parametrize("ops", ["mm", ()])
def test_a_name_is_no_tuple_of_names(ops):
    with pytest.raises(ValueError, match="ops must be a tuple of names of ops"):
        ResultDtypes(torch.bfloat16, ops)


# The proof of a registered mode


def prepared(mode, build):
    spec = Spec(name="a", summary="a", source="a", build=build, cases=(Case(name="c", inputs=lambda _: ()),))
    return modes.prepare(mode, spec, spec.build)


def facts_of(proof):
    return prepared(Mode("own", prepare=lambda model: Prepared(model, proof)), lambda: torch.exp).proof()


def test_an_empty_proof_is_told_from_a_proof():
    assert facts_of(dict) == {NOT_PROVEN: True}
    assert facts_of(lambda: {"calls": 0}) == {"calls": 0}
    with pytest.raises(TypeError, match="mode 'own': proof must return a mapping of facts, got NoneType"):
        facts_of(lambda: None)


def test_a_plain_callable_is_taken_and_not_proven():
    model = nn.Linear(3, 2)
    made = prepared(Mode("own", prepare=lambda model: model.forward), lambda: model)
    assert torch.equal(made.call(X), model(X))
    assert (made.parameters_of, made.proof()) == (model, {NOT_PROVEN: True})
    with pytest.raises(TypeError, match="mode 'own': prepare must return a Prepared or a callable, got int"):
        prepared(Mode("own", prepare=lambda _: 5), lambda: model)


def test_a_backend_is_a_mode_with_its_proof(monkeypatch):
    monkeypatch.setattr(axes, "MODES", dict(axes.MODES))
    model = nn.Linear(3, 2)
    made = prepared(register_backend("mine", lambda graph, _: graph.forward), lambda: model)
    with pytest.raises(NotProvenError, match="a call must run a graph of mine, and there was no call"):
        made.proof()
    assert torch.equal(made.call(X), model(X))
    assert made.proof() == {"runs of a graph of mine": 1}
    torch.compiler.reset()
    eager = prepared(register_backend("nothing", lambda graph, _: graph.forward), nn.Identity)
    with pytest.raises(NotProvenError, match="and call 1 did not"):
        eager.call(5)
    with pytest.raises(UsageError, match="backend 'other': want the name of a backend or a function, got 3"):
        register_backend("other", 3)


def test_the_documented_mode_is_proven_only_if_its_backend_ran(monkeypatch):
    backend = ModuleType("my_backend")
    backend.kernel = nn.functional.linear
    backend.load = lambda model: lambda x: backend.kernel(x, model.weight, model.bias)
    monkeypatch.setitem(sys.modules, "my_backend", backend)
    monkeypatch.setattr(axes, "MODES", dict(axes.MODES))
    exec(re.search(r"```python\n(.*?)```", PAGE.partition("## Adding a mode")[2], re.DOTALL)[1], {})
    prepare = axes.MODES["my_backend"].prepare
    made = prepare(nn.Linear(3, 2))
    made.call(X)
    assert made.proof() == {"runs of my_backend.kernel": 1}
    backend.kernel, backend.load = nn.functional.linear, lambda model: model
    made = prepare(nn.Linear(3, 2))
    with pytest.raises(NotProvenError, match=r"a call must run my_backend\.kernel, and call 1 did not"):
        made.call(X)
    with pytest.raises(NotProvenError, match=r"a call must run my_backend\.kernel"):
        made.proof()

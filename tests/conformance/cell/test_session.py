"""Every process that works on a cell opens it in one way: policy, sources, spec, references."""

import pytest
from harness.sessions import open_in_child
from harness.spec_files import file_of

from conformance.cell import session
from conformance.cell.proofs import register_backend
from conformance.process import child
from conformance.records.cell import Cell, case_of
from conformance.records.plan import SpecLocation
from conformance.records.tasks import CELL, REFERENCE, CellTask, ReferenceTask
from zoo.catalog import get_spec
from zoo.expect import Expect

MERGE = SpecLocation("zoo.models.merge")
BACKEND = "import conformance\nconformance.register_mode('planted', lambda model: conformance.Prepared(model, dict))\n"


def task_for(model="merge", mode="eager", precision="fp32", location=MERGE, **fields):
    return CellTask(Cell(model, mode, precision, "cpu"), location, **{"sources": (), "seed": 5, **fields})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The path of the reference of `merge`, and the result of the process that made it."""
    path = str(tmp_path_factory.mktemp("reference") / "merge.reference")
    task = ReferenceTask("merge", MERGE, 5, ("fp32", "tf32", "amp_bf16"), path)
    made = child.run(REFERENCE, task, deadline=120.0).result
    assert made.ending == "ok"
    return path, made


def opened(task):
    ending = open_in_child(task)
    assert ending.kind == "answered", ending.message
    return ending.result


def test_a_task_becomes_a_session_of_its_cell():
    declared = Expect(outcome="FAIL", reason="known", gate="norm")
    found = opened(task_for(precision="amp_bf16", expect=(declared,)))
    assert (found["spec"], found["cell"], found["seed"]) == ("merge", "merge[eager-amp_bf16-cpu]", 5)
    assert (found["mode"], found["precision"], found["is_eager"]) == ("eager", "amp_bf16", True)
    assert found["expect"] == [{"outcome": "FAIL", "reason": "known", "gate": "norm"}]
    assert found["same_process"]
    assert opened(task_for("mlp@64", location=SpecLocation("zoo.models.mlp")))["spec"] == "mlp@64"


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp_bf16"])
def test_every_switch_is_set_and_none_inherited(precision):
    found = opened(task_for(precision=precision))
    assert found["threads"] == 1
    assert found["tf32"] == [precision == "tf32"] * 2


def test_sources_are_imported_before_the_spec_so_their_modes_exist(tmp_path):
    backend = tmp_path / "backend.py"
    backend.write_text(BACKEND)
    sources = (SpecLocation(file=str(backend)),)
    found = opened(task_for(mode="planted", sources=sources))
    assert (found["mode"], found["is_eager"]) == ("planted", False)
    assert "planted" not in opened(task_for())["modes"]


def test_a_file_that_is_source_and_place_of_the_spec_is_imported_once(tmp_path):
    path = tmp_path / "one.py"
    file_of(tmp_path, "one")
    path.write_text(path.read_text() + BACKEND)  # a second import would register the mode again
    location = SpecLocation(file=str(path))
    assert opened(task_for("one", location=location, sources=(location, location)))["spec"] == "one"


def test_references_are_read_where_the_task_names_their_file(reference):
    path, made = reference
    assert any(file.endswith("zoo/models/merge.py") for file in made.files)
    assert len(made.fingerprint) == 32
    found = opened(task_for(reference=path))
    assert "typical" in found["references"]
    assert "output" in found["tensors"]
    without = opened(task_for())
    assert (without["references"], without["tensors"]) == ([], [])


def test_a_cell_judges_only_the_cases_that_are_not_left_out(reference):
    names = tuple(case.name for case in get_spec("merge").cases)
    for left_out in ((), names[1:]):
        seen = child.run(CELL, task_for(reference=reference[0], left_out=left_out), deadline=120.0).result
        judged = names[: len(names) - len(left_out)]
        assert (seen.ending, seen.cases) == ("finished", judged)
        cases = {case_of(d.case) for d in seen.discrepancies}
        assert cases - {error.name for error in get_spec("merge").error_inputs} == {*judged}


def test_a_low_precision_reads_with_other_weights_what_float32_is_held_to(reference):
    for precision, budgets in (("fp32", ["fp32"]), ("tf32", ["fp32", "tf32"]), ("amp_bf16", ["fp32"])):
        found = opened(task_for(precision=precision, reference=reference[0]))
        assert found["with_other_weights"] == [budgets]
    assert opened(task_for())["with_other_weights"] == []


def test_what_does_not_import_or_is_gone_is_told_by_name(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    location, told = SpecLocation(file=str(path)), f"{path} does not import: ZeroDivisionError: division by zero"
    for task in (task_for(sources=(location,)), task_for("broken", location=location)):
        ending = open_in_child(task)
        assert (ending.kind, ending.message) == ("refused", told)
    seen = child.run(CELL, task_for(sources=(location,)), deadline=120.0).result
    assert (seen.ending, seen.phase, seen.error, seen.message) == ("raised", "import", "UsageError", told)
    ending = open_in_child(task_for("nobody"))
    assert ending.kind == "crashed"
    assert ending.message.startswith("UnknownModelError: no model named 'nobody'")


@pytest.mark.parametrize(("backend", "needs"), [("inductor", True), ("eager", False), (lambda graph, _: graph, False)])
def test_a_cell_needs_a_cpp_compiler_where_inductor_compiles_for_its_mode(monkeypatch, backend, needs):
    monkeypatch.setattr(session.compiler, "require", lambda: asked.append(True))
    mode, asked = register_backend("mine", backend), []
    session.CellSession(get_spec("merge"), Cell("merge", mode.name, "fp32", "cpu"), 0).prepare()
    assert (bool(asked), mode.compiles) == (needs, True)

"""How long a plan takes: as long as its models took, or as long as others do."""

from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, verdict, write

import zoo
from conformance.store import durations, run_files
from conformance.store.durations import CELL, COMPILED, Durations, ModelSeconds


def cells_of(plan):
    """The plain cell and the compiled cell of each model, in fp32."""
    return {(p.cell.model, p.cell.mode): p for p in plan.cells if p.cell.precision == "fp32"}


def test_a_run_tells_the_seconds_of_its_models(tmp_path):
    plan = plan_of_zoo(("net",))
    taken = {p.id: replace(verdict(p.id), seconds=8.0 if p.cell.mode == "compiled" else 0.5) for p in plan.cells}
    run = write(tmp_path / "run", plan, taken)
    assert durations.of_run(run_files.read(run)) == {"net": ModelSeconds(2.0, 0.5, 8.0)}


def test_a_model_that_is_unknown_takes_as_long_as_those_that_are_known():
    plan = plan_of_zoo(("net", "gate"))
    known = Durations(plan, {"net": ModelSeconds(2.0, 0.5, 8.0)})
    cells = cells_of(plan)
    assert [known.cell(cells[model, "eager"]) for model in ("net", "gate")] == [0.5, 0.5]
    assert [known.cell(cells[model, "compiled"]) for model in ("net", "gate")] == [8.0, 8.0]
    assert known.reference("gate") == 2.0


def test_where_nothing_is_known_there_is_a_first_estimate():
    plan = plan_of_zoo(("net",))
    known, cells = Durations(plan, {}), cells_of(plan)
    assert known.cell(cells["net", "eager"]) == CELL
    assert known.cell(cells["net", "compiled"]) == pytest.approx(CELL * COMPILED)


def test_a_skipped_cell_takes_no_time():
    plan = plan_of_zoo(("net",))
    assert Durations(plan, {}).cell(replace(plan.cells[0], skip="no GPU")) == 0.0


def test_the_seconds_of_the_zoo_are_those_of_its_models():
    known = durations.of_the_zoo()
    assert set(known) <= {*zoo.list_models(), *zoo.list_models(module="counterexamples")}
    assert all(one.reference > 0 for one in known.values())

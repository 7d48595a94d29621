"""How long a plan takes: as long as its models took, or as long as others do."""

from dataclasses import replace

import pytest
from harness.whole_runs import at_first_case, plan_of_zoo, verdict, write

import zoo
from conformance.store import durations, run_files
from conformance.store.durations import CELL, COMPILED, REFERENCE, ModelSeconds, estimate


def test_a_run_tells_the_seconds_of_its_models(tmp_path):
    plan = plan_of_zoo(("net",))
    taken = {p.id: replace(verdict(p.id), seconds=8.0 if p.cell.mode == "compiled" else 0.5) for p in plan.cells}
    run = write(tmp_path / "run", plan, taken)
    assert durations.of_run(run_files.read(run)) == {"net": ModelSeconds(2.0, 0.5, 8.0)}


def seconds(plan, known):
    """The seconds of the plain cell and the compiled one of each model, in fp32."""
    cells = [p for p in plan.cells if p.cell.precision == "fp32" and p.cell.mode != "scripted"]
    return list(estimate(plan, known)(cells).values())


def test_a_model_that_is_unknown_takes_as_long_as_those_that_are_known():
    known = {"net": ModelSeconds(2.0, 0.5, 8.0)}
    assert seconds(plan_of_zoo(("net", "gate")), known) == [2.5, 8.0, 2.5, 8.0]


def test_where_nothing_is_known_there_is_a_first_estimate():
    first, compiled = seconds(plan_of_zoo(("net",)), {})
    assert first == pytest.approx(CELL + CELL * REFERENCE)
    assert compiled == pytest.approx(CELL * COMPILED)


def test_a_cell_that_judges_one_of_two_cases_takes_half_the_time():
    assert seconds(at_first_case(plan_of_zoo(("net",))), {"net": ModelSeconds(2.0, 0.5, 8.0)}) == [2.5, 4.0]


def test_a_skipped_cell_takes_no_time():
    plan = plan_of_zoo(("net",))
    skipped = replace(plan.cells[0], skip="no GPU")
    assert estimate(plan, {"net": ModelSeconds(2.0, 0.5)})([skipped, plan.cells[1]]) == {
        skipped.id: 0.0,
        plan.cells[1].id: 2.5,
    }


def test_the_seconds_of_the_zoo_are_those_of_its_models():
    known = durations.of_the_zoo()
    assert set(known) <= {*zoo.list_models(), *zoo.list_models(module="counterexamples")}
    assert all(one.reference > 0 for one in known.values())

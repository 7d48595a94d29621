"""The order of cells: cheap ones first, then the compiled ones, those that may take the run down last."""

from harness.whole_runs import plan_of_zoo

from conformance.commands.order import order, scope_of
from conformance.judging.attempts import Attempts

PLAN = plan_of_zoo(("net", "gate"))
CELLS = tuple(planned.id for planned in PLAN.cells)


def seconds(**models):
    return {cell: models.get(cell.partition("[")[0], 1.0) for cell in CELLS}


def test_cheap_cells_come_first_and_a_model_stays_together(tmp_path):
    found = order(CELLS, PLAN, Attempts(tmp_path), seconds())
    assert sorted(found) == sorted(CELLS)
    cheap, compiled = found[:12], found[12:]
    assert all("[compiled-" in cell for cell in compiled)
    assert [cell.partition("[")[0] for cell in cheap] == ["net"] * 6 + ["gate"] * 6


def test_the_longest_compiled_cells_come_first(tmp_path):
    found = order(CELLS, PLAN, Attempts(tmp_path), seconds(gate=9.0))
    assert [cell.partition("[")[0] for cell in found[12:]] == ["gate"] * 3 + ["net"] * 3


def test_a_model_that_may_take_the_run_down_is_last_with_its_cell_at_the_end(tmp_path):
    attempts = Attempts(tmp_path / "starts")
    (tmp_path / "starts").mkdir()
    suspect = "net[eager-amp_fp16-cpu]"
    attempts._mark(suspect).write_bytes(b".")
    found = order(CELLS, PLAN, attempts, seconds())
    assert {cell.partition("[")[0] for cell in found[:9]} == {"gate"}
    assert found[14] == suspect  # the last one of net that is not compiled
    assert all("[compiled-" in cell for cell in found[15:])


def test_a_worker_takes_a_model_and_later_its_compiled_cells():
    assert {scope_of(planned.cell, PLAN) for planned in PLAN.cells} == {"net", "gate", "net+", "gate+"}


def test_the_compiled_cells_of_a_single_model_are_for_all_workers():
    plan = plan_of_zoo(("net",))
    compiled = [planned.id for planned in plan.cells if planned.cell.mode == "compiled"]
    assert {scope_of(planned.cell, plan) for planned in plan.cells} == {"net", *compiled}


def test_the_precisions_of_a_model_are_compiled_one_after_another(tmp_path):
    found = order(CELLS, PLAN, Attempts(tmp_path), seconds() | {"net[compiled-amp_bf16-cpu]": 5.0})
    assert [cell.partition("[")[0] for cell in found[12:]] == ["net"] * 3 + ["gate"] * 3

"""The order of cells: in rounds over the models, those that must be compiled last."""

from harness.whole_runs import plan_of_zoo

from conformance.commands.judging import order
from conformance.records.cell import model_of

PLAN = plan_of_zoo(("net", "gate", "line"))


def ordered(workers=0, **models):
    """The cells, if those of a model take so many seconds."""
    return order(PLAN, {planned.id: models.get(planned.cell.model, 3.0) for planned in PLAN.cells}, workers)


def test_cheap_cells_come_first_and_each_round_has_one_cell_of_each_model():
    found = ordered()
    assert sorted(found) == sorted(planned.id for planned in PLAN.cells)
    assert ["[compiled-" in cell for cell in found] == [False] * 18 + [True] * 9
    assert [model_of(cell) for cell in found] == ["net", "gate", "line"] * 9


def test_a_quick_model_opens_a_round_and_then_the_longest_comes_first():
    assert [model_of(cell) for cell in ordered(gate=9.0, net=1.0)] == ["net", "gate", "line"] * 9


def test_each_worker_begins_with_two_cells_of_one_quick_model():
    found = [model_of(cell) for cell in ordered(workers=2, gate=9.0)]
    assert found[:9] == ["net", "net", "line", "line", "gate", "net", "line", "gate", "net"]

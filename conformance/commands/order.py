"""The order in which the cells of a run are judged, and which of them one worker takes together.

Cheap cells come first: those of modes that do not compile, a model after the other. One worker takes all of a model,
because another one would only wait for the model's reference. Then come the cells that must be compiled, the longest
models first, so that no worker is left with a long one at the end. One worker takes all of a model here too, because
graphs that are equal in two precisions are compiled once. If there is one model, each of its cells is for whoever is
free, so that it uses the whole machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.judging.attempts import Attempts
from conformance.records.cell import Cell
from conformance.records.plan import Plan


def scope_of(cell: Cell, plan: Plan) -> str:
    """The name of the group with which a worker takes a cell: its model, apart from the model's compiled cells."""
    if cell.mode not in plan.compiling_modes:
        return cell.model
    return f"{cell.model}+" if len(plan.models) > 1 else cell.id  # a name that no word after -k matches


def order(cells: tuple[str, ...], plan: Plan, attempts: Attempts, estimates: Mapping[str, float]) -> tuple[str, ...]:
    """Cells in the order in which they are judged; those that may take the run down are last, with their models.

    Args:
        cells: ids of the cells to judge.
        plan: the plan of the run.
        attempts: the starts that never ended.
        estimates: about how many seconds each cell will take, by id.
    """
    planned = {one.id: one.cell for one in plan.cells}
    lost = {cell for cell in cells if attempts.lost(cell)}
    late = {planned[cell].model for cell in lost}

    longest: dict[str, float] = {}
    for cell in cells:
        if planned[cell].mode in plan.compiling_modes:
            model = planned[cell].model
            longest[model] = max(longest.get(model, 0.0), estimates[cell])

    def place(cell: str) -> tuple[bool, bool, bool, float]:
        compiles = planned[cell].mode in plan.compiling_modes
        return planned[cell].model in late, compiles, cell in lost, -longest[planned[cell].model] if compiles else 0.0

    return tuple(sorted(cells, key=place))

"""Finds the smallest shape of a model's family at which a cell is red."""

import copy
import shlex
from dataclasses import replace

from conformance.judging.executor import Executor
from conformance.judging.resuming import sources_of
from conformance.records.cell import SMALLEST, Shape, Verdict
from conformance.records.plan import Plan, PlannedCell

TOO_LONG = ("TIMEOUT", "OOM")  # each further try could take as much


def judge(executor: Executor, planned: PlannedCell) -> Verdict:
    """The verdict on a cell. If it is red at a shape, its text names the smallest one with a verdict of that name.

    The cell is judged again with one size made smaller, until it is red in no such try.

    Raises:
        MachineError: the machine failed, so the cell has no verdict.
        ChangedError: a file has changed on which the cell depends.
    """
    found = executor.verdict(planned)
    shape = executor.plan.models[planned.cell.model].shape
    if shape is None or not found.red or found.status in TOO_LONG:
        return found
    tried: set[str] = set()

    def is_red(smaller: Shape) -> bool:
        if smaller.name in tried:
            return False
        tried.add(smaller.name)
        return _at(executor, planned, smaller).status == found.status

    while smaller := next(filter(is_red, shape.smaller()), None):
        shape = smaller
    return replace(found, text=f"{found.text}{SMALLEST}{_command(executor.plan, planned, shape)}")


def _at(executor: Executor, planned: PlannedCell, shape: Shape) -> Verdict:
    """The verdict on the same cell at another shape."""
    wider, plan = copy.copy(executor), executor.plan
    model = replace(plan.models[planned.cell.model], shape=shape)
    wider.plan = replace(plan, models={**plan.models, shape.name: model})
    return wider.verdict(replace(planned, cell=replace(planned.cell, model=shape.name)))


def _command(plan: Plan, planned: PlannedCell, shape: Shape) -> str:
    """The words for a shell that judge the cell at a shape."""
    cell, location = planned.cell, plan.models[planned.cell.model].location
    source = shape.name if location.is_of_zoo else f"{location.name}@{shape.sizes_text}"
    modes = sources_of(plan.modes[cell.mode]) if cell.mode in plan.modes else ()
    axes = [f"--mode={cell.mode}", f"--precision={cell.precision}", f"--device={cell.device}"]
    return shlex.join(["conformance", "run", source, *modes, *axes, *[f"--seed={plan.seed}"] * (plan.seed != 0)])

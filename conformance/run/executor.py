"""Runs each cell in its own process, and makes the reference of a model before its cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock

from conformance.axes import PRECISIONS
from conformance.records import bounded
from conformance.records.cell import Cell
from conformance.records.observation import Observation
from conformance.records.plan import Expectation, Plan, PlannedCell
from conformance.records.tasks import CELL, REFERENCE, CellTask, ReferenceTask
from conformance.records.verdicts import Verdict
from conformance.run import child
from conformance.verdict import judge

REFERENCE_DEADLINE_FACTOR = 2  # the reference runs a model some fifty times


class Executor:
    """Judges the cells of a plan.

    Args:
        plan: the plan of the cells.
        folder: the folder of the reference files, one for each model; files that exist are used.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._references: dict[str, Observation | Path] = {}
        self._seconds: dict[str, float] = {}
        self._making = Lock()

    def verdict(self, planned: PlannedCell) -> Verdict:
        """Run one planned cell and judge it."""
        cell = planned.cell
        if planned.skip:
            return Verdict(cell.id, "SKIPPED", planned.skip, short="skipped")
        reference = self.reference(cell.model)
        if isinstance(reference, Observation):
            return judge(cell.id, reference, planned.expect)
        ending = child.run(CELL, cell_task(self._plan, cell, reference), deadline=self._plan.deadline)
        seen = ending.result or Observation(ending.kind, ending.phase, message=ending.message)
        seen = replace(seen, seconds={"reference": self._seconds.get(cell.model, 0.0), **seen.seconds})
        verdict = judge(cell.id, seen, planned.expect)
        notes = (*verdict.notes, *ending.remarks)
        return bounded.verdict(replace(verdict, seconds=ending.seconds, notes=notes))

    def reference(self, model: str) -> Observation | Path:
        """Path of a model's reference file, made if needed; if that fails, the observation for each of its cells."""
        with self._making:
            if model not in self._references:
                self._references[model] = self._made(model)
            return self._references[model]

    def _made(self, model: str) -> Observation | Path:
        path = self._folder / f"{model}.reference"
        if path.exists():
            return path
        wanted = {planned.cell.precision for planned in self._plan.cells} | {"fp32"}
        precisions = tuple(name for name in PRECISIONS if name in wanted)
        plan = self._plan
        task = ReferenceTask(model, plan.models[model], plan.seed, precisions, str(path))
        ending = child.run(REFERENCE, task, deadline=REFERENCE_DEADLINE_FACTOR * plan.deadline)
        self._seconds[model] = round(ending.seconds, 4)
        if ending.result is None:
            return Observation(ending.kind, "reference", message=ending.message)
        if ending.result.ending != "ok":
            return Observation(ending.result.ending, message=ending.result.message)
        return path


def cell_task(plan: Plan, cell: Cell, reference: Path | None = None, expect: tuple[Expectation, ...] = ()) -> CellTask:
    """The task with which a child process opens a cell of a plan."""
    place = "" if reference is None else str(reference)
    return CellTask(cell, plan.models[cell.model], plan.sources, plan.seed, place, expect)

"""Judges the planted cells of a run, by the same road as all others: executor, child process, gates and judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conformance.records.plan import Plan, PlannedCell, SpecLocation
from conformance.records.sentinels import DYING, MODEL, WRONG
from conformance.records.verdicts import Verdict
from conformance.run.executor import Executor

LOCATION = SpecLocation("conformance.cell.planted")
FOLDER = "planted"  # of their reference; no model's file has a name without an ending


def judged(plan: Plan, folder: Path) -> tuple[Verdict, ...]:
    """The verdicts on the planted cells. Each process that judges cells asks for them before its first cell.

    Args:
        plan: the plan of the run, which gives seed and deadline.
        folder: the folder of the run's reference files.

    Raises:
        MachineError: the machine failed.
    """
    cells = (PlannedCell(WRONG), PlannedCell(DYING))
    own = replace(plan, models={MODEL: LOCATION}, modes={}, cells=cells, compiling_modes=())
    executor = Executor(own, folder / FOLDER)
    return tuple(executor.verdict(planned) for planned in cells)

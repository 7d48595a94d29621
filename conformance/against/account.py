"""Measures what one revision costs: judges its cells, and counts bytes and operations of those that pass."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from conformance.errors import UsageError
from conformance.figures import speed
from conformance.figures.bench_jobs import footprint
from conformance.records.revisions import (
    PLAN_REVISION,
    Account,
    AccountTask,
    MeasuredCell,
    RevisionPlan,
    ShortVerdict,
)
from conformance.run import child, pool
from conformance.run.child import Ending
from conformance.run.executor import Executor
from conformance.run.store import Contents

PLAN_DEADLINE = 300.0
LACKING = re.compile(r"ModuleNotFoundError: No module named '(zoo\.[\w.]+)'")  # unless an editable install provides it


def measure_revision(task: AccountTask) -> Account:
    """Plan and judge the cells of a revision, and count what those that pass cost. A worker calls it.

    Raises:
        UsageError: the request cannot be planned at this revision.
    """
    ending = child.run(PLAN_REVISION, task.request, deadline=PLAN_DEADLINE, method="spawn")
    if ending.result is None:
        raise UsageError(_why_no_plan(ending))
    plan = ending.result.plan
    if plan is None:
        return Account(ending.result)
    executor = Executor(plan, Path(task.folder))
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        verdicts = {v.cell: v for v in threads.map(executor.verdict, plan.cells)}
    cells = speed.measurable(Contents(plan, tuple(verdicts), verdicts))
    footprints = dict(pool.carry_out({cell.id: partial(footprint, plan, cell) for cell in cells}))
    return Account(
        ending.result,
        {name: ShortVerdict(verdict.status, verdict.text) for name, verdict in verdicts.items()},
        {cell.id: MeasuredCell(footprints[cell.id], str(executor.reference(cell.model))) for cell in cells},
    )


def _why_no_plan(ending: Ending[RevisionPlan]) -> str:
    lacking = LACKING.match(ending.message)
    if lacking:
        return f"its zoo has no {lacking[1]}, which this conformance needs"
    return ending.message if ending.kind == "refused" else f"planning: {ending.message}"

"""Which measurements `conformance bench` takes of a judged run: every figure, what it costs to get there, and bytes.

One job each, stored under its name: `speed FIGURE CONTEST #LOT`, `compile CELL`, `footprint CELL`, `ceilings DEVICE`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from conformance import jobs, machine, speed
from conformance.execution import Execution
from conformance.jobs import Answer
from conformance.records import Cell
from conformance.store import Contents

WARM_RUNS = 3


def jobs_of(contents: Contents, execution: Execution) -> dict[str, Callable[[], Answer]]:
    """All jobs of a bench by name; those that need the machine for themselves see to it."""
    plan = contents.plan
    cells = speed.green(contents)
    found: dict[str, Callable[[], Answer]] = {}
    for device in dict.fromkeys(cell.device for cell in cells):
        precisions = list(dict.fromkeys(c.precision for c in cells if c.device == device))
        found[f"ceilings {device}"] = partial(_ceilings, plan, device, precisions)
    for contest in speed.contests(plan, contents.verdicts):
        for figure in plan["figures"][contest.members[0]["model"]] if contest.members else ():
            found |= speed.hold(plan, contest, execution, figure, keep=True)
    for cell in cells:
        found[f"footprint {cell.id}"] = partial(footprint, plan, cell)
        if plan["figures"][cell.model] != ["fit"]:
            found[f"compile {cell.id}"] = partial(_compile_cost, plan, cell)
    return found


def _task(plan: dict[str, Any], cell: Cell) -> dict[str, Any]:
    home = plan["models"][cell.model]
    return {"cell": vars(cell), "home": home, "homes": plan["homes"], "seed": plan["seed"]}


def footprint(plan: dict[str, Any], cell: Cell) -> Answer:
    """What a cell costs without a clock, or the reason why it could not be counted."""
    with machine.shared():
        return jobs.answer("conformance.footprint:observe", _task(plan, cell), plan["deadline"])


def _ceilings(plan: dict[str, Any], device: str, precisions: list[str]) -> Answer:
    task = {"device": device, "precisions": precisions}
    with machine.alone():
        return jobs.answer("conformance.ceilings:observe", task, plan["deadline"])


def _compile_cost(plan: dict[str, Any], cell: Cell) -> Answer:
    """Once with an empty cache, then with what that left; where nothing is cached, once."""
    with tempfile.TemporaryDirectory(prefix="conformance-cold-") as cache:
        task = {**_task(plan, cell), "cache": cache}
        cold, *warm = (
            jobs.answer("conformance.compile_cost:observe", task, plan["deadline"])
            for _ in range(1 + WARM_RUNS if cell.mode == "compiled" else 1)
        )
    for run, wanted in [(cold, "miss"), *((run, "hit") for run in warm)]:
        if run.get("cache") not in ("", wanted) and "reason" not in run:
            run["reason"] = f"cache {run['cache']}: it should have been a {wanted}"
    return {"cold": cold, "warm": warm}

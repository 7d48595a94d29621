"""Measures what the project costs besides torch's own work.

    python -m benchmarks.overhead [--models merge mlp] [--runs 7]

It prints one table of medians in seconds. The row of a cell shows its wall time, the torch work in it (build, prepare,
and the calls with their gradients), what comes on top of that work (process, imports, reference file, judge), the share
of the judge in this, and wall time over work. The row of a reference shows its wall time, with the perturbed runs and
the self-check. The last rows show what `from zoo import *` adds to `import torch`, and whether the pytest plugin
imports torch, which it must not. Everything runs once before it is measured, so the fork server is up and the compile
cache is full.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import children
from conformance.judging.executor import cell_task
from conformance.process import child
from conformance.records.plan import Plan
from conformance.records.tasks import CELL, REFERENCE, CellTask, PlanRequest, ReferenceTask

ROOT = Path(__file__).resolve().parent.parent
WORK = ("build", "prepare", "call")  # second derivatives are measured in "call"
DEADLINE = 300.0
ADDED_BY_ZOO = """
import time, torch
started = time.perf_counter()
from zoo import *
print(time.perf_counter() - started)
"""
TORCH_ALONE = """
import time
started = time.perf_counter()
import torch
print(time.perf_counter() - started)
"""
PLUGIN = "import sys, conformance.plugin; print('torch' in sys.modules)"

Row = list[Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["merge", "mlp", "softmax"], help="sources to measure")
    parser.add_argument("--modes", nargs="*", default=[], help="only these modes")
    parser.add_argument("--precision", default="amp_bf16", help="of the cells (default: amp_bf16)")
    parser.add_argument("--runs", type=int, default=7, help="of each cell (default: 7)")
    parser.add_argument("--cache", type=Path, help="folder of compiled code (default: that of `conformance run`)")
    options = parser.parse_args()
    sources, modes = tuple(options.models), tuple(options.modes)
    plan = children.plan_of(PlanRequest(sources, modes, precisions=(options.precision,), devices=("cpu",)))
    children.prepare(plan.environment, options.cache)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for model in plan.models for row in _rows_of_model(plan, model, Path(folder), options.runs)]
    rows += _rows_of_imports(options.runs)
    header = ["what", "wall", "torch work", "on top", "of which judge", "wall/work"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=".3f"))


def _rows_of_model(plan: Plan, model: str, folder: Path, runs: int) -> list[Row]:
    path = folder / f"{model}.reference"
    cells = [planned.cell for planned in plan.cells if planned.cell.model == model]
    precisions = tuple(sorted({"fp32"} | {cell.precision for cell in cells}))
    task = ReferenceTask(model, plan.models[model].location, plan.seed, precisions, str(path))
    walls = []
    for run in range(max(2, runs // 2) + 1):
        ending = child.run(REFERENCE, task, deadline=DEADLINE)
        if ending.result is None or ending.result.ending != "ok":
            return [[f"{model}: no reference, {ending.result.message if ending.result else ending.message}"]]
        walls += [ending.seconds] if run else []  # the first one warms up
    rows: list[Row] = [[f"{model}: reference, {' and '.join(precisions)}", statistics.median(walls)]]
    return rows + [_row_of_cell(cell_task(plan, cell, path), runs) for cell in cells]


def _row_of_cell(task: CellTask, runs: int) -> Row:
    walls, works, judges = [], [], []
    name = f"{task.cell.model}: {task.cell.mode} {task.cell.precision} cell"
    for run in range(runs + 1):
        ending = child.run(CELL, task, deadline=DEADLINE)
        if ending.result is None or ending.result.ending != "finished":
            return [f"{name}: {ending.result.message if ending.result else ending.message}"]
        if not run:  # warms up
            continue
        seconds = ending.result.seconds
        walls.append(ending.seconds)
        works.append(sum(seconds.get(phase, 0.0) for phase in WORK))
        judges.append(seconds.get("judge", 0.0))
    wall, work = statistics.median(walls), statistics.median(works)
    on_top = statistics.median(w - t for w, t in zip(walls, works, strict=True))
    return [name, wall, work, on_top, statistics.median(judges), wall / work]


def _rows_of_imports(runs: int) -> list[Row]:
    torch = statistics.median(float(_printed(TORCH_ALONE)) for _ in range(runs))
    added = statistics.median(float(_printed(ADDED_BY_ZOO)) for _ in range(runs))
    return [
        ["import torch; from zoo import *", torch + added, torch, added, None, (torch + added) / torch],
        [f"import conformance.plugin imports torch: {_printed(PLUGIN)}"],
    ]


def _printed(code: str) -> str:
    """Run Python code in a fresh interpreter in the repository root; returns what it printed."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 -- our own code
    return done.stdout.strip()


if __name__ == "__main__":
    main()

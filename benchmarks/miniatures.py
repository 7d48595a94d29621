"""Checks that the miniatures and the correct models get their verdicts with every seed.

    python -m benchmarks.miniatures --seeds 20 [--jobs 2] [FILE …]

A file of specs states the verdicts: `MINIATURES` lists cells with the status of each, and the eager cells of `CELLS`
must pass. Cells that end only at a deadline are left out. Every other verdict is printed, and the counts. Without FILE,
all files under `tests/specs` that state verdicts are taken. The files of one folder are sources of one run.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks import children
from conformance.judging.executor import Executor
from conformance.plan import find
from conformance.records.cell import Cell
from conformance.records.plan import Plan, SpecLocation
from conformance.records.tasks import PlanRequest

SPECS = Path(__file__).resolve().parent.parent / "tests" / "specs"
WRONG_ON_PURPOSE, CORRECT = "MINIATURES", "CELLS"
DEADLINE = 120.0
GREEN = ("PASS", "EXPECTED")

Verdicts = dict[str, tuple[str, ...]]  # by cell id, the statuses that are right


def states_verdicts(file: Path) -> bool:
    """Whether a file of specs defines `MINIATURES` or `CELLS`. The others only hold parts that it imports."""
    targets = [
        target
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return any(isinstance(target, ast.Name) and target.id in (WRONG_ON_PURPOSE, CORRECT) for target in targets)


def sources_in(folder: Path) -> list[Path]:
    """The files of a folder that state verdicts."""
    return sorted(file for file in folder.glob("*.py") if states_verdicts(file))


def stated_in(file: Path) -> Verdicts:
    """The verdicts that a file states."""
    module = find.load(SpecLocation(file=str(file)))
    stated = {Cell(m.model, m.mode, m.precision, "cpu").id: (m.status,) for m in getattr(module, WRONG_ON_PURPOSE, ())}
    cells = [Cell(*axes, "cpu") for axes in getattr(module, CORRECT, ())]
    return stated | {cell.id: GREEN for cell in cells if cell.mode == "eager"}


def other_verdicts(plan: Plan, stated: Verdicts, seed: int) -> list[str]:
    """One line for each cell that gets another verdict than the stated one."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(replace(plan, seed=seed), Path(folder))
        for planned in [planned for planned in plan.cells if planned.id in stated]:
            verdict, right = executor.verdict(planned), stated[planned.id]
            if verdict.status not in right:
                text = f"{verdict.cell} is {verdict.status}, not {right[0]}: {verdict.text[:160]}"
                wrong.append(f"seed {seed}: {text}")
    return wrong


def main() -> None:
    """Judge, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files whose cells are judged")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (default: 20)")
    parser.add_argument("--jobs", type=int, default=2, help="seeds to run at one time (default: 2)")
    options = parser.parse_args()
    started = time.monotonic()
    every = [file for folder in sorted(SPECS.iterdir()) for file in sources_in(folder)]
    files = [file.resolve() for file in options.files] or every
    for folder in dict.fromkeys(file.parent for file in files):
        _check(folder, [file for file in files if file.parent == folder], options.seeds, options.jobs)
    print(f"{time.monotonic() - started:.0f} s")


def _check(folder: Path, files: list[Path], seeds: int, jobs: int) -> None:
    """Judge the cells of some files of a folder, and print the count and every other verdict."""
    sources = tuple(map(str, sources_in(folder)))
    plan = children.plan_of(PlanRequest(sources, devices=("cpu",), deadline=DEADLINE))
    children.prepare(plan.environment)
    stated: Verdicts = {}
    for file in files:
        stated |= stated_in(file)
    with ThreadPoolExecutor(jobs) as threads:
        found = threads.map(lambda seed: other_verdicts(plan, stated, seed), range(seeds))
        wrong = [line for lines in found for line in lines]
    print(f"{folder.name}: {len(stated)} cells, {seeds} seeds, {len(wrong)} other verdicts")
    for line in wrong:
        print(line)


if __name__ == "__main__":
    main()

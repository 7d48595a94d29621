"""Asks whether the miniatures and the correct models get their verdicts whatever the seed.

`python benchmarks/miniatures.py --seeds 20 [--jobs 2] [FILE …]` judges every cell of `tests/miniatures.py`, but for
those that hang until a deadline, and the eager cells of `tests/correct_models.py`, with N seeds. It prints
each verdict that is not the one stated there, and the counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "conformance"))

import planning

from conformance.run.executor import Execution
from conformance.run.store import cell_id

DEADLINE = 120.0
GREEN = ("PASS", "EXPECTED")


def wanted(file: str) -> dict[str, tuple[str, ...]]:
    """The statuses that are right, by cell id."""
    material = planning.material(file)
    if file == "miniatures.py":
        return {f"{m.model}[{m.mode}-{m.precision}-cpu]": (m.status,) for m in material.MINIATURES}
    return {f"{model}[{mode}-{p}-cpu]": GREEN for model, mode, p in material.CELLS if mode == "eager"}


def judge_all(file: str, right: dict[str, tuple[str, ...]], seed: int) -> list[str]:
    """The cells of one file with one seed that got another verdict."""
    plan = {**planning.plan_of(file), "seed": seed, "deadline": DEADLINE}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        running = Execution(plan, Path(folder))
        for planned in [cell for cell in plan["cells"] if cell_id(cell) in right]:
            verdict, allowed = running.verdict(planned), right[cell_id(planned)]
            if verdict.status not in allowed:
                text = f"{verdict.cell} is {verdict.status}, not {allowed[0]}: {verdict.text[:160]}"
                wrong.append(f"seed {seed}: {text}")
    return wrong


def main() -> None:
    """Judge, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=["miniatures.py", "correct_models.py"])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    right = {file: wanted(file) for file in options.files}
    for file in options.files:
        planning.plan_of(file)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [(file, seed) for seed in range(options.seeds) for file in options.files]
        found = list(pool.map(lambda job: judge_all(job[0], right[job[0]], job[1]), jobs))
    for file in options.files:
        wrong = [line for (name, _), lines in zip(jobs, found, strict=True) if name == file for line in lines]
        print(f"{file}: {len(right[file])} cells, {options.seeds} seeds, {len(wrong)} other verdicts")
        print("\n".join(wrong))
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

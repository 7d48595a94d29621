"""Calibrates the judge: false alarms, kills, and how near correct results come to their budgets.

    python -m benchmarks.calibrate --seeds 20 [--models merge mlp] [--modes eager] [--jobs 2] [--json FILE]

It runs the zoo with N seeds and prints these tables as Markdown:
(a) False alarms: red verdicts on models that nobody damaged. Each is a fault of the judge, of a spec or of torch.
(b) Value over budget: how near correct results come to a budget. Above 1 is red; far below 1, the budget is generous.
(c) Kills: correct tensors that were damaged on purpose, how many of them the gates reject, and which gates do. Damage
    below the noise of a low precision may survive there. Damage that survives in fp32 is a hole.
(d) Canaries: damage to the oracle's own tensors. "Accepted": the gates of a cell accept it. "Weak": only the budgets of
    float32 reject it.
(e) Rivals: the same tensors judged by other criteria. Their row "nothing" counts their false alarms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks import children
from benchmarks.calibration_tables import as_json, print_tables
from benchmarks.results import CellTrial, Results
from benchmarks.tasks import DAMAGED_CELL
from conformance.judging.executor import Executor, cell_task
from conformance.process import child
from conformance.records.cell import Observation
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PlanRequest
from conformance.verdict import judge


def main() -> None:
    """Run the trials and print the tables."""
    options = _options()
    plan = children.plan_of(
        PlanRequest(
            sources=tuple(options.models),
            modes=tuple(options.modes),
            precisions=tuple(options.precisions),
            devices=("cpu",),
            deadline=options.timeout,
        )
    )
    children.prepare(plan.environment, options.cache)
    results = Results()
    started = time.monotonic()
    jobs = [(model, seed) for seed in range(options.seeds) for model in plan.models]
    with ThreadPoolExecutor(options.jobs) as threads:
        for done, trials in enumerate(threads.map(lambda job: trials_of(plan, *job), jobs), 1):
            model, seed = jobs[done - 1]
            for trial in trials:
                results.add(seed, trial)
            spent = time.monotonic() - started
            print(f"{done}/{len(jobs)} {model}, seed {seed}: {spent:.0f} s", file=sys.stderr, flush=True)
    counts = f"{len(plan.models)} models, {options.seeds} seeds, {len(results.verdicts)} cells"
    spent = f"{time.monotonic() - started:.0f} s with {options.jobs} jobs"
    print(f"# The judge, calibrated\n\n{counts} in {spent}; torch {plan.environment.torch}, {plan.environment.cpu}.\n")
    print_tables(results)
    if options.json:
        options.json.write_text(json.dumps(as_json(plan, options.seeds, results), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (default: 20)")
    parser.add_argument("--models", nargs="*", default=[], help="sources, as for `conformance run` (default: the zoo)")
    parser.add_argument("--modes", nargs="*", default=[], help="only these modes")
    parser.add_argument("--precisions", nargs="*", default=[], help="only these precisions")
    parser.add_argument("--jobs", type=int, default=2, help="models to run at one time (default: 2)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a cell may take (default: 300)")
    parser.add_argument("--cache", type=Path, help="folder of compiled code (default: that of `conformance run`)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counts and survivors to this file")
    return parser.parse_args()


def trials_of(plan: Plan, model: str, seed: int) -> list[CellTrial]:
    """All cells of a model under one seed; the reference is made first."""
    seeded = replace(plan, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        executor = Executor(seeded, Path(folder))
        return [_trial(seeded, executor, planned) for planned in plan.cells if planned.cell.model == model]


def _trial(plan: Plan, executor: Executor, planned: PlannedCell) -> CellTrial:
    """Run one planned cell as a run does, and damage its tensors.

    Raises:
        RuntimeError: the study itself failed.
    """
    cell = planned.cell
    reference = executor.reference(cell.model)
    if isinstance(reference, Observation):
        return CellTrial(cell, judge(cell.id, reference, planned.expect))
    ending = child.run(DAMAGED_CELL, cell_task(plan, cell, reference, planned.expect), deadline=plan.deadline)
    if ending.result is None and ending.phase == "damage":
        raise RuntimeError(f"{cell.id}: the calibration itself failed: {ending.message}")
    damaged = ending.result
    seen = damaged.seen if damaged else Observation(ending.kind, ending.phase, message=ending.message)
    return CellTrial(cell, judge(cell.id, seen, planned.expect), damaged, ending.seconds)


if __name__ == "__main__":
    main()

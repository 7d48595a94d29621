"""Calibrates the judge: false alarms, kills, and how near correct results come to their budgets.

`python benchmarks/calibrate.py --seeds 20 [--models merge mlp] [--modes eager] [--jobs 2] [--json FILE]`
runs the zoo with N seeds and prints, as Markdown tables:
(a) False alarms: red verdicts on models that nobody damaged. Each is a fault of the judge, a spec or torch.
(b) Value over budget: how near correct results come to a budget. Above 1 is red, far below 1 is generous.
(c) Kills: correct tensors damaged on purpose; how many of them the gates reject, and which gates do. Damage
    below the noise of a low precision may survive there; what survives in fp32 is a hole.
(d) Canaries: damage to the oracle's own tensors that a cell's gates accepted, or see in float32 only: "weak".
(e) Rivals: the same tensors judged by other criteria. Their row "nothing" counts their false alarms.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The children import the modules beside this script, and torch's compiler, which `same` is a part of.
PATHS = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, PATHS))
os.environ.update(CONFORMANCE_PRELOAD="compiler", TORCHINDUCTOR_COMPILE_THREADS="1", OMP_NUM_THREADS="1")
sys.path.insert(0, str(HERE.parent))

from results import Results, as_json, print_tables  # noqa: E402 -- needs the path above

from conformance.run import child  # noqa: E402
from conformance.run.executor import Execution, _observation  # noqa: E402
from conformance.verdict import judge  # noqa: E402
from conformance.records import Cell, Observation, Verdict  # noqa: E402

CACHE = Path("~/.cache/torch-conformance/inductor").expanduser()


class Trials(Execution):
    """Runs cells as a run does, damages their tensors, and counts."""

    def trial(self, planned: dict[str, Any]) -> tuple[Cell, Verdict, dict[str, Any], float]:
        """Run one planned cell: its verdict, what became of its damaged tensors, and its wall time."""
        cell = Cell(planned["model"], planned["mode"], planned["precision"], planned["device"])
        reference = self.reference(cell.model)
        if isinstance(reference, Observation):
            return cell, judge(cell.id, reference, planned["expect"]), {}, 0.0
        task = {"cell": vars(cell), "reference": str(reference), **self._common(cell.model)}
        task["dtypes"] = {e["tensor"]: e["dtype"] for e in planned["expect"] if e["outcome"] == "dtype"}
        ending = child.run("damaged_cell:observe", task, deadline=self._plan["deadline"])
        if ending.kind != "answered" and ending.phase == "damage":
            raise RuntimeError(f"{cell.id}: the calibration itself failed: {ending.message}")
        answer = ending.answer or {}
        seen = Observation.from_json(answer["seen"]) if answer else _observation(ending)
        return cell, judge(cell.id, seen, planned["expect"]), answer, ending.seconds


def main() -> None:
    """Run the trials and print the tables."""
    options = _options()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.cache)
    options.cache.mkdir(parents=True, exist_ok=True)
    plan = _plan(options)
    results = Results()
    started = time.monotonic()
    jobs = [(model, seed) for seed in range(options.seeds) for model in plan["models"]]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done, trials in enumerate(pool.map(lambda job: _tried(plan, *job), jobs), 1):
            model, seed = jobs[done - 1]
            for cell, verdict, answer, seconds in trials:
                results.add(cell, seed, verdict, answer)
                results.seconds[cell.mode].append(seconds)
            spent = time.monotonic() - started
            print(f"{done}/{len(jobs)} {model}, seed {seed}: {spent:.0f} s", file=sys.stderr, flush=True)
    print_tables(plan, options, results, time.monotonic() - started)
    if options.json:
        options.json.write_text(json.dumps(as_json(plan, options, results), indent=1))


def _options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--models", nargs="*", default=[], help="as for `conformance run` (default: all)")
    parser.add_argument("--modes", nargs="*", default=[])
    parser.add_argument("--precisions", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2, help="models at work at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a cell may take")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"of the compiler (default: {CACHE})")
    parser.add_argument("--json", type=Path, help="write all counts and survivors here")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> dict[str, Any]:
    task = {"sources": options.models, "modes": options.modes, "precisions": options.precisions}
    task |= {"devices": ["cpu"], "seed": 0, "deadline": options.timeout}
    ending = child.run("conformance.plan.matrix:make", task, deadline=300)
    if ending.kind != "answered" or "usage" in ending.answer:
        sys.exit(ending.message or ending.answer["usage"])
    return ending.answer


def _tried(plan: dict[str, Any], model: str, seed: int) -> list[tuple[Cell, Verdict, dict[str, Any], float]]:
    """All cells of a model under one seed, its reference first."""
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials({**plan, "seed": seed}, Path(folder))
        return [trials.trial(planned) for planned in plan["cells"] if planned["model"] == model]


if __name__ == "__main__":
    main()

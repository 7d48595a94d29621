"""The network that learns a checkerboard, trained in every mode and precision of a device.

    python -m benchmarks.checkerboard --device cuda --json FILE [--size 512] [--steps 500] [--seconds N]

It prints the results as Markdown. Each training runs in a process of its own with an empty compile cache. Then, in
another process, its steps and eager steps in float32 are timed side by side, for the ratio. Last, the ceilings of the
device are measured. Every result is kept in FILE when it comes, so the next call does what is missing. With
`--seconds`, nothing begins after so many seconds. If a training fails, the page shows the reason. TF32 is off in all
precisions but tf32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from benchmarks import children
from benchmarks.tasks import COMPARE, TRAIN, Comparison, Training, TrainingTask
from conformance.axes import DEVICES, PRECISIONS, exists, usual
from conformance.errors import RecordError
from conformance.process import pool
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import Ceilings, Reason
from conformance.records.plan import Environment
from conformance.records.tasks import CEILINGS, CeilingsTask, Target

BASELINE = ("eager", "fp32")
MODES = ("eager", "compiled", "scripted")
FEWEST_STEPS = 4  # the first three are counted apart
DEADLINE = 900.0  # of one process
CEILINGS_NAME = "ceilings"
COLUMNS = "mode,precision,first 3 steps,ms a step,loss,skipped,peak MB,faster,TFLOP/s,of the ceiling".split(",")

Found = Training | Comparison | Ceilings | Reason


@dataclass(frozen=True)
class Setting:
    """What all results of a file have in common."""

    device: str
    size: int
    steps: int
    torch: str
    machine: str


@dataclass(frozen=True)
class Study:
    """The content of the file: its setting, and every result by the name of its job."""

    setting: Setting
    results: Mapping[str, Found] = field(default_factory=dict)


class Job(NamedTuple):
    """Work for one process: the name of its result, the target and its task."""

    name: str
    target: Target[Any, Any]
    task: Any


HEADER = """# A checkerboard of {size} x {size} pixels, {steps} steps of Adam

torch {torch} on {machine}. One process for each row.
"""
NOTES = """
- *first 3 steps*: seconds, with compilation on one thread and an empty cache. *ms a step*: mean over the others.
- *loss*: before the last step. *skipped*: steps whose gradients were not finite.
- *peak*: {peak}.
- *faster*: than eager fp32. Both steps run in turns in one process. The figure is the median ratio within a round, and
  its 99 % interval.
- *TFLOP/s*: 2 operations for each multiplication of the convolutions, forward and backward, over the median time of
  a step in those rounds. *of the ceiling*: its share of what the device reaches on a square matrix product in that
  precision.
"""
PEAKS = {
    "cuda": "the most that was allocated at one time, with parameters and the state of the optimizer",
    "cpu": "the most that a step allocates at one time",
}


def main(arguments: list[str] | None = None) -> None:
    """Do what is missing, then print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, required=True)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file of the results")
    parser.add_argument("--size", type=int, default=512, help="pixels along each side, a multiple of 8 (default: 512)")
    parser.add_argument("--steps", type=int, default=500, help="of each training (default: 500)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many seconds")
    options = parser.parse_args(arguments)
    if options.size < 8 or options.size % 8 or options.steps < FEWEST_STEPS:
        parser.error(f"want a positive multiple of 8 for the size and at least {FEWEST_STEPS} steps")
    end = time.monotonic() + options.seconds
    here = children.observe_environment()
    children.prepare(here, compiles_for=(options.device,))
    study = resume(options.json, setting(here, options.device, options.size, options.steps))
    for job in missing(study):
        if time.monotonic() >= end:
            break
        started = time.monotonic()
        found = carried_out(job)
        study = replace(study, results={**study.results, job.name: found})
        store(options.json, study)
        reason = str(found) if isinstance(found, Reason) else ""
        print(job.name, f"{time.monotonic() - started:.1f} s", reason, file=sys.stderr, flush=True)
    print(page(study))


def setting(here: Environment, device: str, size: int, steps: int) -> Setting:
    """The setting of a call on this machine. Without the device, the study ends."""
    if device == "cuda" and not here.gpus:
        sys.exit("there is no CUDA device")
    machine = ", ".join(here.gpus) if device == "cuda" else f"one thread of {here.cpu}"
    return Setting(device, size, steps, here.torch, machine)


def carried_out(job: Job) -> Found:
    """The result of a job, or the reason why there is none."""
    found = pool.result(job.target, job.task, DEADLINE)
    return found.reason if isinstance(found, Comparison) and found.reason else found


def resume(path: Path, wanted: Setting) -> Study:
    """What is stored in the file. It must be of the same setting."""
    if not path.exists():
        return Study(wanted)
    try:
        study = from_json(Study, json.loads(path.read_text(encoding="utf-8")))
    except (RecordError, ValueError) as problem:
        sys.exit(f"{path} holds no results of this study: {problem}")
    for key, value in vars(wanted).items():
        if getattr(study.setting, key) != value:
            sys.exit(f"{path} holds results for {key} {getattr(study.setting, key)}, asked for {value}")
    return study


def store(path: Path, study: Study) -> None:
    """Write the file in one step."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(to_json(study), indent=1), encoding="utf-8")
    unfinished.replace(path)


def precisions(device: str) -> list[str]:
    """The usual precisions that exist on a device."""
    return [name for name in usual(PRECISIONS) if exists(PRECISIONS[name], device)]


def rows_of(setting: Setting) -> list[tuple[str, str]]:
    """Modes and precisions in the order of the table."""
    return [(mode, precision) for mode in MODES for precision in precisions(setting.device)]


def missing(study: Study) -> list[Job]:
    """Jobs without a result: trainings, then ratios, then ceilings. A job that failed before comes last."""
    setting, results = study.setting, study.results
    rows = rows_of(setting)
    tasks = {row: TrainingTask(setting.device, *row, setting.size, setting.steps) for row in rows}
    jobs = [Job(f"train {' '.join(row)}", TRAIN, task) for row, task in tasks.items()]
    jobs += [Job(f"compare {' '.join(row)}", COMPARE, task) for row, task in tasks.items() if row != BASELINE]
    jobs.append(Job(CEILINGS_NAME, CEILINGS, CeilingsTask(setting.device, tuple(precisions(setting.device)))))
    wanted = [job for job in jobs if isinstance(results.get(job.name, Reason("missing")), Reason)]
    return sorted(wanted, key=lambda job: job.name in results)


def page(study: Study) -> str:
    """The table as Markdown, with the reasons of what failed below."""
    setting, results = study.setting, study.results
    rows = [[*row, *cells_of(study, *row)] for row in rows_of(setting)]
    align = ("left",) * 2 + ("right",) * 8
    table = tabulate(rows, COLUMNS, tablefmt="github", disable_numparse=True, colalign=align)
    failed = [f"- {name}: {found}." for name, found in results.items() if isinstance(found, Reason)]
    below = "\n".join(["\nNot done:\n", *failed] if failed else [])
    return HEADER.format(**vars(setting)) + "\n" + table + "\n" + NOTES.format(peak=PEAKS[setting.device]) + below


def cells_of(study: Study, mode: str, precision: str) -> list[str]:
    """The cells of one training, empty if it has no result yet."""
    trained = study.results.get(f"train {mode} {precision}")
    if not isinstance(trained, Training):
        return ["failed" if trained else ""] + [""] * 7
    shown = [
        f"{trained.first:.2f} s",
        f"{1e3 * trained.rest / (study.setting.steps - FEWEST_STEPS + 1):.2f}",
        f"{trained.loss:.4f}",
        str(trained.skipped),
        f"{trained.peak / 1e6:.1f}",
    ]
    timed = timing(study.results, mode, precision)
    if timed is None:
        return [*shown, "no figure" if f"compare {mode} {precision}" in study.results else "", "", ""]
    seconds, faster = timed
    rate, ceilings = trained.flops / seconds, study.results.get(CEILINGS_NAME)
    ceiling = ceilings.flop_rates.get(precision) if isinstance(ceilings, Ceilings) else None
    return [*shown, faster, f"{rate / 1e12:.3g}", f"{rate / ceiling:.0%}" if ceiling else ""]


def timing(results: Mapping[str, Found], mode: str, precision: str) -> tuple[float, str] | None:
    """Seconds of a step, and how much faster it is. For the baseline it is the median over all comparisons."""
    if (mode, precision) == BASELINE:
        seconds = [found.eager_seconds for found in results.values() if isinstance(found, Comparison)]
        return (statistics.median(seconds), "1") if seconds else None
    found = results.get(f"compare {mode} {precision}")
    if not isinstance(found, Comparison) or found.ratio is None:
        return None
    return found.seconds, f"{found.ratio.middle:.2f} ({found.ratio.low:.2f} to {found.ratio.high:.2f})"


if __name__ == "__main__":
    main()

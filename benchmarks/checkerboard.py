"""The network that learns a chess board, trained in every mode and precision of a device.

`python benchmarks/checkerboard.py --device cuda --json FILE [--size 512] [--steps 500] [--seconds N]` prints the
results as Markdown. Each training runs in a process of its own, with an empty compiler cache; then, in another, steps
of it are timed in turns with eager ones in float32, for the ratio; and last the most that the device can multiply.
Every result is kept in FILE as it comes, so that a second call does what is missing; with `--seconds` no work is begun
after so long. A training that fails has its reason in the table. TF32 is off in all but tf32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")]))
os.environ.update(CONFORMANCE_PRELOAD="compiler", TORCHINDUCTOR_COMPILE_THREADS="1")

from tabulate import tabulate  # noqa: E402 -- needs the path above

from conformance.run import machine_lock, pool  # noqa: E402
from conformance.axes import DEVICES, PRECISIONS  # noqa: E402
from conformance.figures.ratio import Ratio  # noqa: E402

BASELINE = ("eager", "fp32")
MODES = ("eager", "compiled", "scripted")
FEWEST_STEPS = 4  # the first three are counted apart
DEADLINE = 900.0  # of one process
CEILINGS = "ceilings"

Results = dict[str, dict[str, Any]]


class Job(NamedTuple):
    """Work for one process: the name of its result, the function and its task."""

    name: str
    target: str
    task: dict[str, Any]


HEADER = """# A chess board of {size} x {size} pixels, {steps} steps of Adam

torch {torch} on {machine}. One process for each row.
"""
NOTES = """
- *first 3 steps*: seconds, compilation on one thread with an empty cache included. *ms a step*: mean over the others.
- *loss*: before the last step. *skipped*: steps whose gradients were not finite.
- *peak*: {peak}.
- *faster*: than eager fp32. Steps of both in turns in one process: the median ratio within a round, and its 99 %
  interval.
- *TFLOP/s*: 2 operations for each multiplication of the convolutions, forward and backward, over the median time of
  a step in those rounds; and as a share of what the device reaches on a square matrix product in that precision.
"""
PEAKS = {
    "cuda": "the most that was allocated at one time, parameters and state of the optimizer included",
    "cpu": "the most that a step allocates at one time",
}


def main(arguments: list[str] | None = None) -> None:
    """Do what is missing, then print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--device", choices=DEVICES, required=True)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="of the results")
    parser.add_argument("--size", type=int, default=512, help="pixels along each side, a multiple of 8")
    parser.add_argument("--steps", type=int, default=500, help="of each training")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    options = parser.parse_args(arguments)
    if options.size < 8 or options.size % 8 or options.steps < FEWEST_STEPS:
        parser.error(f"want a positive multiple of 8 for the size and at least {FEWEST_STEPS} steps")
    end = time.monotonic() + options.seconds
    kept = resume(options.json, setting(options))
    for job in missing(kept):
        if time.monotonic() >= end:
            break
        with machine_lock.alone():
            started = time.monotonic()
            found = kept["results"][job.name] = pool.answer(job.target, job.task, DEADLINE)
        store(options.json, kept)
        print(job.name, f"{time.monotonic() - started:.1f} s", found.get("reason", ""), file=sys.stderr, flush=True)
    print(page(kept))


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """What all results of a file have in common."""
    found = pool.answer("conformance.plan.matrix:probe", {}, DEADLINE)
    if "reason" in found:
        sys.exit(found["reason"])
    if options.device == "cuda" and not found["gpus"]:
        sys.exit("there is no CUDA device")
    where = ", ".join(found["gpus"]) if options.device == "cuda" else f"one thread of {found['cpu']}"
    return {
        "device": options.device,
        "size": options.size,
        "steps": options.steps,
        "torch": found["torch"],
        "machine": where,
    }


def resume(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """What is stored in the file; it must be of the same setting."""
    if not path.exists():
        return {"setting": wanted, "results": {}}
    kept: dict[str, Any] = json.loads(path.read_text())
    for key, value in wanted.items():
        if kept["setting"][key] != value:
            sys.exit(f"{path} holds results for {key} {kept['setting'][key]}, asked for {value}")
    return kept


def store(path: Path, kept: dict[str, Any]) -> None:
    """Write the file at once or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(kept, indent=1))
    unfinished.replace(path)


def precisions(device: str) -> list[str]:
    """Those that exist on a device."""
    return [p.name for p in PRECISIONS.values() if not p.devices or device in p.devices]


def rows_of(setting: dict[str, Any]) -> list[tuple[str, str]]:
    """Modes and precisions in the order of the table."""
    return [(mode, precision) for mode in MODES for precision in precisions(setting["device"])]


def missing(kept: dict[str, Any]) -> list[Job]:
    """What has no result yet: trainings, then ratios, then ceilings; what has failed before comes last."""
    setting, results = kept["setting"], kept["results"]
    axes = {key: setting[key] for key in ("device", "size", "steps")}
    pairs = [(mode, precision, {**axes, "mode": mode, "precision": precision}) for mode, precision in rows_of(setting)]
    found = [Job(f"train {mode} {precision}", "checkerboard_trial:train", task) for mode, precision, task in pairs]
    for mode, precision, task in pairs:
        if (mode, precision) != BASELINE:
            found.append(Job(f"compare {mode} {precision}", "checkerboard_trial:compare", task))
    task = {"device": setting["device"], "precisions": precisions(setting["device"])}
    found.append(Job(CEILINGS, "conformance.measure.ceilings:observe", task))
    wanted = [job for job in found if job.name not in results or "reason" in results[job.name]]
    return sorted(wanted, key=lambda job: job.name in results)


def page(kept: dict[str, Any]) -> str:
    """The table as Markdown, with the reasons of what failed below."""
    setting, results = kept["setting"], kept["results"]
    rows = [[*key, *cells_of(results, *key, setting["steps"])] for key in rows_of(setting)]
    titles = "mode,precision,first 3 steps,ms a step,loss,skipped,peak MB,faster,TFLOP/s,of the ceiling".split(",")
    table = tabulate(rows, titles, tablefmt="github", disable_numparse=True, colalign=("left",) * 2 + ("right",) * 8)
    failed = [f"- {name}: {found['reason']}." for name, found in results.items() if "reason" in found]
    notes = NOTES.format(peak=PEAKS[setting["device"]])
    return (
        HEADER.format(**setting) + "\n" + table + "\n" + notes + "\n".join(["\nNot done:\n", *failed] if failed else [])
    )


def cells_of(results: Results, mode: str, precision: str, steps: int) -> list[str]:
    """The cells of one training: empty where it has no result yet."""
    trained = results.get(f"train {mode} {precision}", {})
    if "reason" in trained:
        return ["failed"] + [""] * 7
    if not trained:
        return [""] * 8
    compared = timed(results, mode, precision)
    shown = [
        f"{trained['first']:.2f} s",
        f"{1e3 * trained['rest'] / (steps - FEWEST_STEPS + 1):.2f}",
        f"{trained['loss']:.4f}",
        str(trained["skipped"]),
        f"{trained['peak'] / 1e6:.1f}",
    ]
    if "seconds" not in compared:
        return [*shown, "no figure" if compared else "", "", ""]
    rate = trained["flops"] / compared["seconds"]
    ceiling = results.get(CEILINGS, {}).get("flop_rates", {}).get(precision)
    share = f"{rate / ceiling:.0%}" if ceiling else ""
    return [*shown, compared["faster"], f"{rate / 1e12:.3g}", share]


def timed(results: Results, mode: str, precision: str) -> dict[str, Any]:
    """Seconds of a step, and how much faster it is; of the baseline the median over all that it was compared with."""
    found = results.get(f"compare {mode} {precision}", {})
    if (mode, precision) == BASELINE:
        seconds = [result["eager_seconds"] for result in results.values() if "eager_seconds" in result]
        return {"seconds": statistics.median(seconds), "faster": "1"} if seconds else {}
    if "ratio" not in found:
        return found
    faster = Ratio.from_json(found["ratio"])
    return {**found, "faster": f"{faster.middle:.2f} ({faster.low:.2f} to {faster.high:.2f})"}


if __name__ == "__main__":
    main()

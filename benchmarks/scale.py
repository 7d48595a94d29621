"""Measures runs of many cells: planned, stored, resumed, shown, cut into shards and joined.

    python -m benchmarks.scale [--models 1667] [--shards 10000]

It plans a file with so many tiny models, six cells each, and judges one cell. The record of that cell stands for all
others, so nothing else is computed. Commands are run as a person runs them. The seconds of a command are those of the
processor, of itself and of all processes that it waited for; the memory is that of its largest process.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from benchmarks import children
from conformance.records.cell import Verdict
from conformance.records.convert import to_json
from conformance.records.plan import Plan
from conformance.records.tasks import PlanRequest
from conformance.store import files, run_files, shards

AXES = {"modes": ("eager", "scripted"), "devices": ("cpu",)}
FILE = """
import torch
from torch import nn
from zoo import Case, Spec

CASES = (Case(name="typical", inputs=lambda g: (torch.randn(4, 8, generator=g),)),)
SPECS = tuple(
    Spec(name=f"net{{i}}", summary="tiny", source="none", build=lambda: nn.Linear(8, 8), cases=CASES)
    for i in range({count})
)
"""
Row = tuple[str, float, float, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1667, help="in the file, six cells each (default: 1667)")
    parser.add_argument("--shards", type=int, default=10000, help="that share its cells (default: 10000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conformance-scale-") as folder:
        source = Path(folder) / "nets.py"
        source.write_text(FILE.format(count=options.models), encoding="utf-8")
        print(tabulate(_measured(source, options.shards), ["", "CPU seconds", "seconds", "MB"], floatfmt=".1f"))


def _measured(source: Path, count: int) -> Iterable[Row]:
    axes = [f"--{name[:-1]}={value}" for name, values in AXES.items() for value in values]
    store = source.parent / "first"
    _command("a shard", "run", source, *axes, f"--shard=1/{count}", f"--store={store}")
    (first,) = (store / "runs").iterdir()
    verdict = next(iter(run_files.read(first).verdicts.values()))
    before, started = _used_by_children(), time.perf_counter()
    plan = children.plan_of(PlanRequest((str(source),), **AXES))
    used, seconds = _used_by_children(), time.perf_counter() - started
    yield f"{len(plan.cells)} cells planned", used[0] - before[0], seconds, used[1]
    run = source.parent / "run"
    run_files.create(run, plan)
    yield _stored(run, plan, verdict)
    yield _command(f"{len(plan.cells)} cells resumed, one judged", "run", source, f"--resume={run}")
    yield _command(f"{len(plan.cells)} cells shown", "show", run)
    started, folders = time.process_time(), []
    split = shards.split(plan, count, None)
    for shard in split:
        own = shards.cut(plan, shard)
        folders.append(source.parent / "shards" / str(shard.index))
        records = ({"verdict": to_json(replace(verdict, cell=one.id))} for one in own.cells)
        run_files.create(folders[-1], own, b"".join(map(files.record_line, records)))
    size = sum((folder / run_files.PLAN).stat().st_size for folder in folders)
    yield (
        f"plans of {count} shards, {size / 1e6:.1f} MB together",
        time.process_time() - started,
        float("nan"),
        float("nan"),
    )
    yield _command(f"{count} shards joined", "merge", *folders, f"--into={source.parent / 'whole'}")


def _stored(run: Path, plan: Plan, verdict: Verdict) -> Row:
    """Store a record for each cell but the last, one after another."""
    writer, cpu, started = run_files.Writer(run), time.process_time(), time.perf_counter()
    for planned in plan.cells[:-1]:
        writer.add(to_json(replace(verdict, cell=planned.id)))
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
    writer.close()
    size = (run / run_files.LINES).stat().st_size / len(plan.cells)
    return (
        f"{len(plan.cells)} records of {size / 1e3:.1f} kB written, {len(plan.cells) / seconds:.0f} a second",
        cpu,
        seconds,
        float("nan"),
    )


def _used_by_children() -> tuple[float, float]:
    """Seconds of the processor that ended children took, and MB of the largest of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _command(what: str, *words: object) -> Row:
    """Run a command to its end; what it prints is discarded."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "conformance", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "CI": "true"})  # noqa: S603
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{what}: exit code {process.returncode}")
    return what, used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()

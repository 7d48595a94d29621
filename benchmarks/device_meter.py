"""Counts how often the meter sees a difference between equal programs of a device, and how often one of 10 %.

    python -m benchmarks.device_meter --device cuda [--trials 30]

A trial builds three copies of a program: A, A′, and B, which does a tenth more work. The meter compares A with A′ and A
with B, with its two controls, as in a measurement of cells. One process does all trials, alone on the machine. The
study of the CPU, with rivals, is `benchmarks.meters`. It prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate

from benchmarks.meter_trial import AGAIN, BASE, CALLS, OURS, SLOWED, ours, slowed, step_of
from benchmarks.tasks import Reading
from conformance.axes import DEVICES
from conformance.cell.policy import set_policy
from conformance.figures.meter import A_A_CONTROL, SLOWER_CONTROL, TimedCall
from conformance.measure.side_by_side import clock_for
from conformance.process import machine_lock
from conformance.records.measurements import FASTER, NOISY, SLOWER

BUDGET = 0.1  # seconds for each program of a trial
ROWS, WIDTHS = {"cpu": 64, "cuda": 8192}, {"cpu": (512, 512, 512), "cuda": (1024, 1024, 1024)}
COLUMNS = ("program", "µs a call", "false alarms", "finds 10 %", "no verdict: copies", "no verdict: 10 %")


def main() -> None:
    """Do all trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="default: cuda")
    parser.add_argument("--trials", type=int, default=30, help="of each program (default: 30)")
    options = parser.parse_args()
    set_policy()
    device = options.device
    programs: dict[str, Callable[[], Callable[[], Any]]] = {
        "one launch: `relu` of 1024 numbers": lambda: _launch(device),
        f"`mlp{WIDTHS[device]}` on {ROWS[device]} rows, a step": lambda: step_of(ROWS[device], WIDTHS[device], device),
    }
    with machine_lock.alone():
        rows = [_row(name, build, device, options.trials) for name, build in programs.items()]
    print(tabulate(rows, COLUMNS, tablefmt="github", disable_numparse=True, colalign=("left", *["right"] * 5)))


def _launch(device: str) -> Callable[[], Any]:
    """A call that does next to nothing but start a kernel."""
    numbers = torch.ones(1024, device=device)
    return lambda: torch.relu(numbers)


def _row(name: str, build: Callable[[], Callable[[], Any]], device: str, trials: int) -> list[str]:
    readings = [_trial(build, device, seed) for seed in range(trials)]
    verdicts = {side: [NOISY if one.reason else one.verdicts[side] for one in readings] for side in (AGAIN, SLOWED)}
    clock, call = clock_for(device), build()
    took = statistics.median(clock.sample(call)[0].ns for _ in range(CALLS))
    alarms = sum(word in (FASTER, SLOWER) for word in verdicts[AGAIN])
    unsure = [f"{verdicts[side].count(NOISY)} of {trials}" for side in (AGAIN, SLOWED)]
    return [
        name,
        f"{took / 1e3:.0f}",
        f"{alarms} of {trials}",
        f"{verdicts[SLOWED].count(SLOWER)} of {trials}",
        *unsure,
    ]


def _trial(build: Callable[[], Callable[[], Any]], device: str, seed: int) -> Reading:
    """What the meter makes of fresh copies of a program."""
    programs = {BASE: build(), AGAIN: build(), SLOWED: slowed(build(), device)}
    controls = [TimedCall(A_A_CONTROL, build()), TimedCall(SLOWER_CONTROL, build())]
    return ours(programs, BUDGET, controls=controls, seed=seed, device=device)[OURS]


if __name__ == "__main__":
    main()

"""Child process of the study of meters: it builds A, A′ and B, and every meter compares them, in random order."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.meter_rivals import RIVALS, Programs
from benchmarks.tasks import MeterTask, Reading, Readings
from conformance.cell.policy import set_policy
from conformance.errors import NotMeasuredError
from conformance.figures import meter
from conformance.figures.meter import A_A_CONTROL, SLOWER_CONTROL, Rounds, TimedCall, check_controls
from conformance.measure.side_by_side import clock_for, slow_down
from conformance.process.child_side import ChildProcess
from zoo.models.mlp import mlp

OURS = "conformance"
BASE, AGAIN, SLOWED = "A", "A′", "B"
NETWORKS = {"small": (24, (64, 32, 10)), "wide": (64, (512, 512, 512))}  # rows, and widths
WARM_CALLS, CALLS = 50, 101
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6):\n        pass\n"
MOST_PADDING = 2**16  # floats before each network, so that trials differ in the addresses of the weights

Meter = Callable[[Programs, float], dict[str, Reading]]


def observe(task: MeterTask, process: ChildProcess) -> Readings:
    """Take the readings of every meter, alone on the machine."""
    set_policy()
    order = random.Random(task.seed)  # noqa: S311 -- an order, no secret
    padding, networks = [], {}
    for name in (BASE, AGAIN, SLOWED, A_A_CONTROL, SLOWER_CONTROL):
        padding.append(torch.empty(order.randrange(MOST_PADDING)))
        networks[name] = step_of(*NETWORKS[task.program])
    with process.alone():
        networks[SLOWED] = slowed(networks[SLOWED])  # while nothing disturbs, so that a tenth is a tenth
        controls = [TimedCall(name, networks.pop(name)) for name in (A_A_CONTROL, SLOWER_CONTROL)]
        meters: list[Meter] = [partial(ours, controls=controls, seed=task.seed), *RIVALS]
        process.enter("measure")
        with _busy(task.busy):
            return _readings(order.sample(meters, len(meters)), networks, task.budget)


def _readings(meters: Sequence[Meter], programs: Programs, budget: float) -> Readings:
    readings: dict[str, Reading] = {}
    for compare in meters:
        started = time.perf_counter()
        found = compare(programs, budget)
        wall = time.perf_counter() - started
        readings |= {rule: replace(reading, wall=wall) for rule, reading in found.items()}
    return Readings(readings)


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Endless loops in other processes; each ends by itself if this process is gone."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603 -- our own code
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def step_of(rows: int, widths: tuple[int, int, int], device: str = "cpu") -> Callable[[], Any]:
    """Forward and backward of a fresh copy of a network, warm."""
    torch.manual_seed(0)
    network, x, cotangent = mlp(*widths).to(device), *(torch.randn(rows, widths[n], device=device) for n in (0, 2))
    parameters = list(network.parameters())

    def step() -> Any:
        return torch.autograd.grad(network(x), parameters, cotangent)

    for _ in range(WARM_CALLS):
        step()
    return step


def slowed(step: Callable[[], Any], device: str = "cpu") -> Callable[[], Any]:
    """The same step with a tenth of its time of other work after it."""
    clock = clock_for(device)
    timed = TimedCall(SLOWED, step, quickest=statistics.median(clock.sample(step)[0].ns for _ in range(CALLS)))
    slow_down(timed, device)
    return timed.call


def ours(
    programs: Programs, budget: float, *, controls: Sequence[TimedCall], seed: int, device: str = "cpu"
) -> dict[str, Reading]:
    """Rounds of the programs and of the two controls, judged as in a measurement of cells."""
    clock, rounds = clock_for(device), Rounds()
    calls = [*(TimedCall(name, call) for name, call in programs.items()), *controls]
    try:
        for timed in calls:
            meter.warm_up(timed, clock)
        slow_down(controls[-1], device)
        rounds = meter.measure(calls, clock, seed=seed, budget=budget)
        check_controls(rounds.ratio(BASE, A_A_CONTROL), rounds.ratio(BASE, SLOWER_CONTROL))
        found = {name: rounds.ratio(BASE, name) for name in programs if name != BASE}
        reason = ""
    except NotMeasuredError as problem:
        found, reason = {}, str(problem)
    return {
        OURS: Reading(
            verdicts={name: ratio.verdict for name, ratio in found.items()},
            ratios={name: ratio.middle for name, ratio in found.items()},
            seconds=sum(sample.host_ns for sample in rounds.samples.get(BASE, ())) / 1e9,
            intervals=found,
            reason=reason,
        )
    }

"""What one process of a trial does: builds A, A' and B, and has every meter compare them, in an order drawn by lot."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from meter_rivals import RIVALS, Programs, Reading

from conformance.measure import side_by_side, timing
from conformance.run import child, machine_lock
from conformance.cell.observe import set_policy
from conformance.measure.side_by_side import BURDENED, TWIN
from conformance.measure.timing import Contestant, HostClock, NotMeasuredError, Rounds
from zoo.models.mlp import mlp

OURS = "conformance"
BASE, AGAIN, SLOWED = "A", "A′", "B"
NETWORKS = {"small": (24, (64, 32, 10)), "wide": (64, (512, 512, 512))}  # rows, and widths
WARM_CALLS, CALLS = 50, 101
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6):\n        pass\n"
MOST_PADDING = 2**16  # floats before each network, so that trials differ in where weights lie


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: every meter's readings.

    Args:
        task: "program" (one of `NETWORKS`), "seed", "budget" (seconds that a program may take in a meter's hands),
            "busy" (how many endless loops run beside).
        enter_phase: told where the process is.

    Returns: by row the fields of a `Reading`, and "wall": the seconds of the meter, its own warming up and its
        controls included.
    """
    set_policy()
    lot = random.Random(task["seed"])  # noqa: S311 -- a lot, no secret
    padding, networks = [], {}
    for name in (BASE, AGAIN, SLOWED, TWIN, BURDENED):
        padding.append(torch.empty(lot.randrange(MOST_PADDING)))
        networks[name] = step_of(task["program"])
    enter_phase(child.WAITING)
    with machine_lock.alone():
        networks[SLOWED] = burdened(networks[SLOWED])  # while nothing disturbs: a tenth is a tenth
        controls = [Contestant(name, networks.pop(name)) for name in (TWIN, BURDENED)]
        meters = [partial(ours, controls=controls, lot=task["seed"]), *RIVALS]
        enter_phase("measure")
        with _busy(task["busy"]):
            return _readings(lot.sample(meters, len(meters)), networks, task["budget"])


def _readings(meters: list[Callable[..., dict[str, Reading]]], programs: Programs, budget: float) -> dict[str, Any]:
    readings: dict[str, Any] = {}
    for meter in meters:
        started = time.perf_counter()
        found = meter(programs, budget)
        wall = time.perf_counter() - started
        readings |= {row: {**asdict(reading), "wall": wall} for row, reading in found.items()}
    return readings


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Endless loops beside; each ends by itself should this process be gone."""
    command = [sys.executable, "-c", BUSY, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def step_of(name: str) -> Callable[[], Any]:
    """Forward and backward of a fresh copy of a network, warm."""
    rows, widths = NETWORKS[name]
    torch.manual_seed(0)
    network, x, cotangent = mlp(*widths), torch.randn(rows, widths[0]), torch.randn(rows, widths[2])
    parameters = list(network.parameters())

    def step() -> Any:
        return torch.autograd.grad(network(x), parameters, cotangent)

    for _ in range(WARM_CALLS):
        step()
    return step


def burdened(step: Callable[[], Any]) -> Callable[[], Any]:
    """The same with a tenth of its time of other work behind it."""
    clock = HostClock()
    contestant = Contestant(SLOWED, step, quickest=statistics.median(clock.sample(step)[0].ns for _ in range(CALLS)))
    side_by_side.burden(contestant, "cpu")
    return contestant.call


def ours(programs: Programs, budget: float, *, controls: list[Contestant], lot: int) -> dict[str, Reading]:
    """Rounds of the programs and of the two controls, judged as a contest is."""
    clock, rounds = HostClock(), Rounds()
    contestants = [*(Contestant(name, call) for name, call in programs.items()), *controls]
    try:
        for contestant in contestants:
            timing.warm_up(contestant, clock)
        side_by_side.burden(controls[-1], "cpu")
        rounds = timing.measure(contestants, clock, seed=lot, budget=budget)
        side_by_side.check_controls(rounds.ratio(BASE, TWIN), rounds.ratio(BASE, BURDENED))
        found = {name: rounds.ratio(BASE, name) for name in programs if name != BASE}
        reason = ""
    except NotMeasuredError as problem:
        found, reason = {}, str(problem)
    return {
        OURS: Reading(
            verdicts={name: ratio.verdict for name, ratio in found.items()},
            ratios={name: ratio.middle for name, ratio in found.items()},
            seconds=sum(sample.host_ns for sample in rounds.samples.get(BASE, ())) / 1e9,
            intervals={name: ratio.to_json() for name, ratio in found.items()},
            reason=reason,
        )
    }

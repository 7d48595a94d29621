"""Adds work to a timed call, which tests the meter, and forbids recompilation in timed calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.figures.meter import Clock, HostClock, TimedCall
from conformance.measure.clocks import DeviceClock
from zoo import internals

EXTRA_WORK = 0.1
TURNS, SLEEP_CYCLES = 10_000, 1_000_000


def slow_down(timed: TimedCall, device: str) -> None:
    """Add other work after each run of a timed call: a tenth of the time of its quickest run."""
    call, extra = timed.call, EXTRA_WORK * timed.quickest
    if device == "cuda":
        cycles = round(extra * SLEEP_CYCLES / _quickest(DeviceClock(device), _sleep))

        def slower() -> Any:
            result = call()
            internals.sleep_on_device(cycles)  # work for the device that the host does not see
            return result

        timed.call = slower
        return
    turns = range(max(1, round(extra * TURNS / _quickest(HostClock(), _turn))))

    def longer() -> Any:
        result = call()
        for _ in turns:
            pass
        return result

    timed.call = longer


def _quickest(clock: Clock, work: Callable[[], None]) -> float:
    return min(clock.sample(work)[0].ns for _ in range(11))


def _turn() -> None:
    for _ in range(TURNS):
        pass


def _sleep() -> None:
    internals.sleep_on_device(SLEEP_CYCLES)


@contextlib.contextmanager
def no_recompilation() -> Iterator[None]:
    """A context in which a call that would compile anew raises an error (from torch 2.6; before, nothing happens)."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    with contextlib.nullcontext() if set_stance is None else set_stance("fail_on_recompile"):
        yield

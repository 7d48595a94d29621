"""Times programs in rounds: one call of every program per round, in random order.

The calls of one round happen at almost the same moment, so a disturbance of the machine affects all of them alike, on
average. Only ratios within a round are used. If two equal programs are timed one after the other on a busy machine,
their times differ by up to half. Sampling stops when the intervals are narrow, never when they show a difference.
Method and evidence: docs/measurement.md.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conformance.errors import NotMeasuredError, TimedCallError
from conformance.figures.rounds import Rounds, Sample

FEWEST_ROUNDS, LONGEST = 12, 2.0  # rounds whatever the budget; seconds that they may take for one program
FIRST_LOOK, MOST_ROUNDS = 20, 5000  # each look at the intervals comes after 1.5 times as many rounds as the one before
MOST_PRIMING, PRIMING_NS = 4, 1_000_000
UNSETTLED_CALLS = 3  # TorchScript optimises during its first calls
FIRST_CALLS, WINDOW, STEADY, MOST_WARM_CALLS = 6, 5, 0.05, 200
EMPTY_CALLS, EMPTY_SAMPLES = 20, 101  # a call must take longer than so many empty ones; samples of an empty call


@dataclass
class TimedCall:
    """A callable that is timed.

    Attributes:
        name: a name that is unique in its round.
        call: the callable.
        before: called before each call, outside the measured time, to restore the state; None if a call changes none.
        warm_calls: number of calls until its time was steady; set by `warm_up`.
        quickest: nanoseconds of the quickest call until then; set by `warm_up`.
    """

    name: str
    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    warm_calls: int = 0
    quickest: float = math.inf


class Clock(Protocol):
    """Times a single call, because repeated calls would find their own data in the cache."""

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""


class HostClock:
    """Measures wall time and, on Linux, the time that this thread waited for a processor."""

    def __init__(self) -> None:
        self._queue = _open_queue()

    def _delay(self) -> int:
        return int(os.pread(self._queue, 64, 0).split()[1]) if self._queue is not None else 0

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""
        waited = self._delay()
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return Sample(took, took, self._delay() - waited), result


def _open_queue() -> int | None:
    """The open schedstat file of this thread (time run, time waited, turns); None if the system has none."""
    try:
        return os.open(Path("/proc/thread-self/schedstat"), os.O_RDONLY)
    except OSError:
        return None


def warm_up(timed: TimedCall, clock: Clock) -> None:
    """Call until the time is steady.

    Args:
        timed: the call to warm up; its `warm_calls` and `quickest` are set.
        clock: the clock of its device.

    Raises:
        NotMeasuredError: its time never became steady, or it is too fast or too slow to time.
    """
    times: list[float] = []
    while True:
        times.append(_prime(timed, clock, 0)[0].ns)
        calls = FEWEST_ROUNDS * (1 + priming_calls(min(times)))
        if calls * min(times) > LONGEST * 1e9 and len(times) >= UNSETTLED_CALLS:
            seen = f"{min(times) / 1e9:.2g} s a call, {calls} do not fit in {LONGEST:g} s"
            raise NotMeasuredError("too slow", seen)
        if len(times) >= max(FIRST_CALLS, 2 * WINDOW):
            earlier, later = (statistics.median(times[a:b]) for a, b in ((-2 * WINDOW, -WINDOW), (-WINDOW, None)))
            if abs(math.log(later / earlier)) <= STEADY:
                break
        if len(times) >= MOST_WARM_CALLS:
            raise NotMeasuredError("no steady state", f"in {len(times)} calls")
    timed.warm_calls, timed.quickest = len(times) - WINDOW, min(times)
    if later < EMPTY_CALLS * _empty_ns(clock):
        seen = f"{later:.0f} ns a call, an empty one takes {_empty_ns(clock):.0f}"
        raise NotMeasuredError("too fast to time", seen)


def _empty_ns(clock: Clock) -> float:
    return statistics.median(clock.sample(lambda: None)[0].ns for _ in range(EMPTY_SAMPLES))


def priming_calls(slowest: float) -> int:
    """The number of untimed calls before each timed one.

    They fetch the code and data that the other programs drove out of the caches. After other code a call of 0.1 ms
    takes up to a third longer, so a program that resembles the others of its round would look faster.

    Args:
        slowest: nanoseconds of the slowest call of a round.

    >>> priming_calls(250_000), priming_calls(1_000_000), priming_calls(2_000_000)
    (4, 1, 0)
    """
    return min(MOST_PRIMING, round(PRIMING_NS / slowest))


def _prime(timed: TimedCall, clock: Clock, priming: int) -> tuple[Sample, Any]:
    """Make some untimed calls and a timed one.

    Args:
        timed: the call.
        clock: the clock of its device.
        priming: number of untimed calls.

    Returns:
        The sample and the result of the last call.
    """
    for _ in range(priming + 1):
        if timed.before is not None:
            timed.before()
        sample, result = clock.sample(timed.call)
    return sample, result


def measure(
    calls: Sequence[TimedCall],
    clock: Clock,
    *,
    seed: int,
    budget: float,
    on_result: Callable[[str, Any], None] = lambda name, result: None,  # noqa: ARG005
) -> Rounds:
    """Sample all calls in rounds.

    Args:
        calls: the calls, warmed up; the first is the baseline, to which the intervals must be narrow.
        clock: the clock of their device.
        seed: seed of the order within each round.
        budget: seconds that the calls of one `TimedCall` may take in all, once there are 12 rounds.
        on_result: called with the name and the result of every timed call, outside the measured time.

    Raises:
        TimedCallError: a call raised an exception.
    """
    rounds, order = Rounds(), random.Random(seed)  # noqa: S311 -- an order, no secret
    spent = dict.fromkeys((c.name for c in calls), 0.0)
    look, priming = FIRST_LOOK, priming_calls(max(c.quickest for c in calls))
    gc.collect()
    gc.disable()
    try:
        while rounds.count < FEWEST_ROUNDS or (rounds.count < MOST_ROUNDS and max(spent.values()) < budget * 1e9):
            taken = {}
            for timed in order.sample(calls, len(calls)):
                try:
                    taken[timed.name], result = _prime(timed, clock, priming)
                except Exception as problem:
                    raise TimedCallError(timed.name, problem) from problem
                spent[timed.name] += taken[timed.name].host_ns * (priming + 1)
                on_result(timed.name, result)
                del result
            rounds.add(taken)
            if rounds.count == look:
                if rounds.is_narrow(calls[0].name):
                    break
                look += look // 2
    finally:
        gc.enable()
    return rounds

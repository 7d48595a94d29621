"""The meter: rounds of single calls of everything that is compared, in random order.

The calls of one round happen at almost the same moment, so a disturbance of the machine affects all of them alike, on
average. Only ratios within a round are used. Two blocks timed one after the other share nothing: on a busy machine
they differ by up to half between equal programs. Sampling stops when the intervals are narrow, never when they show a
difference. Method and evidence: docs/measurement.md.
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
from conformance.figures.rounds import Rounds
from conformance.records.measurements import Sample

FEWEST_ROUNDS, LONGEST = 12, 2.0  # whatever the budget; seconds that they may take for one program
FIRST_LOOK, MOST_ROUNDS = 20, 5000  # looks are few: each is half as many rounds again as the one before
MOST_PRIMING, PRIMING_NS = 4, 1_000_000
UNSETTLED_CALLS = 3  # TorchScript optimises during its first ones
FIRST_CALLS, WINDOW, STEADY, MOST_WARM_CALLS = 6, 5, 0.05, 200
EMPTY_CALLS, EMPTY_SAMPLES = 20, 101  # a call must cost more than so many empty ones


@dataclass
class TimedCall:
    """A callable that is timed.

    Attributes:
        name: unique in its round.
        call: what is timed.
        before: done before each sample, outside the measured time; None if a call leaves nothing behind.
        warm_calls: calls until its time was steady.
        quickest: nanoseconds of the quickest call until then.
    """

    name: str
    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    warm_calls: int = 0
    quickest: float = math.inf


class Clock(Protocol):
    """Takes one sample: a single call, since repeated ones find their own data in the cache."""

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call, and return its result too."""


class HostClock:
    """Wall time, and on Linux the time that this thread waited for a processor."""

    def __init__(self) -> None:
        self._queue = _open_queue()

    def _delay(self) -> int:
        return int(os.pread(self._queue, 64, 0).split()[1]) if self._queue is not None else 0

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call, and return its result too."""
        waited = self._delay()
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return Sample(took, took, self._delay() - waited), result


def _open_queue() -> int | None:
    """The schedstat of this thread: time run, time waited, turns."""
    try:
        return os.open(Path("/proc/thread-self/schedstat"), os.O_RDONLY)
    except OSError:
        return None


def warm_up(timed: TimedCall, clock: Clock) -> None:
    """Call until the time is steady.

    Args:
        timed: whose `warm_calls` and `quickest` are set.
        clock: to time with.

    Raises:
        NotMeasuredError: no steady state, too fast to time, or too slow.
    """
    times: list[float] = []
    while True:
        times.append(primed(timed, clock, 0)[0].ns)
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
    """How many untimed calls precede a timed one, if the slowest call of a round takes so many nanoseconds.

    The first calls fetch the code and data that the other programs drove out of the caches. After other code a call of
    0.1 ms takes up to a third longer, so a program that resembles its neighbours would look faster.
    """
    return min(MOST_PRIMING, round(PRIMING_NS / slowest))


def primed(timed: TimedCall, clock: Clock, priming: int) -> tuple[Sample, Any]:
    """A sample of the last of several calls in a row, and its result."""
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
    show: Callable[[str, Any], None] = lambda name, result: None,  # noqa: ARG005
) -> Rounds:
    """Sample everything in rounds, against the first of them.

    Args:
        calls: warmed up; the first is the baseline that the widths of intervals are judged by.
        clock: to time with.
        seed: of the order within each round.
        budget: seconds that the calls of one `TimedCall` may take in all, once there are 12 rounds.
        show: told the result of the last call of every sample, off the clock.

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
                    taken[timed.name], result = primed(timed, clock, priming)
                except Exception as problem:
                    raise TimedCallError(timed.name, problem) from problem
                spent[timed.name] += taken[timed.name].host_ns * (priming + 1)
                show(timed.name, result)
                del result
            rounds.add(taken)
            if rounds.count == look:
                if rounds.is_narrow(calls[0].name):
                    break
                look += look // 2
    finally:
        gc.enable()
    return rounds

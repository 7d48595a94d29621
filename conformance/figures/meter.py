"""Times programs in rounds: one call of every program per round, in random order.

The calls of one round happen at almost the same moment, so a disturbance of the machine affects all of them alike, on
average. Only ratios within a round are used. If two equal programs are timed one after the other on a busy machine,
their times differ by up to half. Sampling stops when the intervals are narrow, never when they show a difference.
Method and evidence: docs/measurement.md.
"""

import contextlib
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from conformance.errors import NotMeasuredError, TimedCallError
from conformance.records.measurements import FASTER, SLOWER, Ratio

FEWEST_ROUNDS, LONGEST = 12, 2.0  # rounds whatever the budget; seconds that they may take for one program
FIRST_LOOK, MOST_ROUNDS = 20, 5000  # each look at the intervals comes after 1.5 times as many rounds as the one before
MOST_PRIMING, PRIMING_NS = 4, 1_000_000
UNSETTLED_CALLS = 3  # TorchScript optimises during its first calls
FIRST_CALLS, WINDOW, STEADY, MOST_WARM_CALLS = 6, 5, 0.05, 200
EMPTY_CALLS, EMPTY_SAMPLES = 20, 101  # a call must take longer than so many empty ones; samples of an empty call

NARROW = 0.01  # half-width of an interval that ends the sampling
CLEAN_ENOUGH = 0.2  # share of the pairs that must be undisturbed
UNDISTURBED = 0.01  # largest share of its time that an undisturbed sample waits for a processor
CONFIDENCE = 0.99
FEWEST_PAIRS = 8  # fewer have no 99 % interval: all may fall on one side of the median by chance

A_A_CONTROL = "A/A control"  # a copy of the baseline
SLOWER_CONTROL = "10 % slower control"  # another copy, with added work


@dataclass
class TimedCall:
    """A callable that is timed."""

    name: str  # unique in its round
    call: Callable[[], Any]
    before: Callable[[], None] | None = None  # restores the state before each call, outside the measured time
    warm_calls: int = 0  # calls until its time was steady; set by `warm_up`
    quickest: float = math.inf  # nanoseconds of the quickest call until then; set by `warm_up`


@dataclass(frozen=True)
class Sample:
    """The time of one call, in nanoseconds."""

    ns: float  # what counts: on a GPU by the device's clock, otherwise the same as `host_ns`
    host_ns: float  # wall time on the host
    delay_ns: float = 0.0  # the part of `host_ns` in which the thread waited for a processor

    @property
    def clean(self) -> bool:
        """Whether the call hardly waited for a processor."""
        return self.delay_ns <= UNDISTURBED * self.host_ns


class Clock(Protocol):
    """Times a single call, because repeated calls would find their own data in the cache."""

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""


class HostClock:
    """Measures wall time and, on Linux, the time that this thread waited for a processor."""

    def __init__(self) -> None:
        self._queue: int | None = None  # the schedstat file of this thread (time run, time waited, turns), if there is
        with contextlib.suppress(OSError):
            self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def _delay(self) -> int:
        return int(os.pread(self._queue, 64, 0).split()[1]) if self._queue is not None else 0

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""
        waited = self._delay()
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return Sample(took, took, self._delay() - waited), result


def warm_up(timed: TimedCall, clock: Clock) -> None:
    """Call until the time is steady, which sets `warm_calls` and `quickest`.

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
    empty = statistics.median(clock.sample(lambda: None)[0].ns for _ in range(EMPTY_SAMPLES))
    if later < EMPTY_CALLS * empty:
        raise NotMeasuredError("too fast to time", f"{later:.0f} ns a call, an empty one takes {empty:.0f}")


def priming_calls(slowest: float) -> int:
    """The number of untimed calls before each timed one.

    They fetch the code and data that the other programs drove out of the caches. After other code a call of 0.1 ms
    takes up to a third longer, so a program that resembles the others of its round would look faster. The slowest call
    of a round, in nanoseconds, decides.

    >>> priming_calls(250_000), priming_calls(1_000_000), priming_calls(2_000_000)
    (4, 1, 0)
    """
    return min(MOST_PRIMING, round(PRIMING_NS / slowest))


def _prime(timed: TimedCall, clock: Clock, priming: int) -> tuple[Sample, Any]:
    """Make some untimed calls and a timed one; returns the sample and the result of the last one."""
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
) -> "Rounds":
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


@dataclass
class Rounds:
    """The samples of several calls: a list by the name of the call, with one sample for each round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, taken: dict[str, Sample]) -> None:
        """Add one round: a sample by the name of each call."""
        for name, sample in taken.items():
            self.samples.setdefault(name, []).append(sample)

    @property
    def count(self) -> int:
        """The number of rounds."""
        return min((len(s) for s in self.samples.values()), default=0)

    def ratio(self, baseline: str, variant: str) -> Ratio:
        """How many times faster than the baseline the variant is.

        Raises:
            NotMeasuredError: too few rounds, or too many of them disturbed.
        """
        pairs = list(zip(self.samples[baseline], self.samples[variant], strict=True))
        clean = [(a, b) for a, b in pairs if a.clean and b.clean]
        if len(clean) < max(FEWEST_PAIRS, CLEAN_ENOUGH * len(pairs)):
            raise NotMeasuredError("too noisy", f"the processor was undisturbed in {len(clean)} of {len(pairs)} pairs")
        return ratio_of([math.log(a.ns / b.ns) for a, b in clean], clean=len(clean) / len(pairs))

    def seconds(self, name: str) -> float:
        """Median time of one call, in seconds."""
        return statistics.median(s.ns for s in self.samples[name]) / 1e9

    def is_narrow(self, baseline: str) -> bool:
        """Whether the interval of every ratio to the baseline is narrower than `NARROW`."""
        try:
            return all(self.ratio(baseline, name).half_width < NARROW for name in self.samples if name != baseline)
        except NotMeasuredError:
            return False


def ratio_of(logs: Sequence[float], *, clean: float = 1.0) -> Ratio:
    """The ratio of several pairs of times, with its 99 % interval.

    The interval is that of the median by order statistics, so it assumes nothing about the distribution of times.

    Args:
        logs: log(time of the baseline / time of the variant), one for each pair; at least `FEWEST_PAIRS`.
        clean: share of all pairs that were used.

    >>> found = ratio_of([math.log(r) for r in (1.8, 1.9, 1.9, 2.0, 2.0, 2.1, 2.1, 2.2)])
    >>> round(found.middle, 2), round(found.low, 2), round(found.high, 2), found.verdict
    (2.0, 1.8, 2.2, 'faster')
    """
    ordered = sorted(logs)
    outside = _ranks_outside(len(ordered))
    low, high = ordered[outside], ordered[-1 - outside]
    return Ratio(math.exp(statistics.median(ordered)), math.exp(low), math.exp(high), len(ordered), clean)


@cache
def _ranks_outside(n: int) -> int:
    """How many of n ordered values to leave out at each end, so that the others enclose the median with 99 %."""
    tail, outside = 0.0, 0
    for rank in range(n):
        tail += math.comb(n, rank) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside = rank
    return outside


def pooled_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """One ratio from those of several processes. Its interval spans all of theirs, so a gain must show in each of them.

    A process has a bias of its own that its interval does not show.

    >>> both = pooled_ratio([Ratio(1.0, 0.9, 1.1, pairs=20), Ratio(1.21, 1.2, 1.3, pairs=30)])
    >>> round(both.middle, 2), both.low, both.high, both.pairs, both.processes
    (1.1, 0.9, 1.3, 50, 2)
    """
    return Ratio(
        middle=statistics.geometric_mean(r.middle for r in ratios),
        low=min(r.low for r in ratios),
        high=max(r.high for r in ratios),
        pairs=sum(r.pairs for r in ratios),
        clean=min(r.clean for r in ratios),
        processes=sum(r.processes for r in ratios),
    )


def check_controls(same: Ratio, slower: Ratio) -> None:
    """Check that the meter sees the differences that exist, and no others; otherwise the process gives no figure.

    The ratios are those of the two controls to the baseline.

    Raises:
        NotMeasuredError: the meter saw a difference between two copies, or did not see the 10 % more work.
    """
    if same.verdict in (FASTER, SLOWER):
        raise NotMeasuredError("control failed", f"two copies of one model came out {same.middle:.3g} apart")
    if slower.verdict != SLOWER:
        seen = f"[{slower.low:.3g}, {slower.high:.3g}]"
        raise NotMeasuredError("too noisy", f"the meter could not see 10 % more work, {seen}")

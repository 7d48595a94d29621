"""The meter: rounds of single calls of everything that is compared, in an order drawn by lot.

What stands in one round shares its moment, so whatever the machine does to one call it does, on average, to all;
only ratios within a round are used. Two blocks timed one after the other share nothing, and differ by up to half
between equal programs on a busy machine. Sampling stops when the intervals are narrow, never when they say
something. Method and evidence: docs/measurement.md.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from conformance.failures import one_line
from conformance.interval import FEWEST_PAIRS, Ratio, ratio

FEWEST_ROUNDS, LONGEST = 12, 2.0  # whatever the budget; seconds that they may take for one contestant
FIRST_LOOK, MOST_ROUNDS = 20, 5000  # looks are few: each is half as many rounds again as the one before
MOST_PRIMING, PRIMING_NS = 4, 1_000_000
NARROW = 0.01  # half-width of an interval that ends the sampling
UNSETTLED_CALLS = 3  # TorchScript optimises during its first ones
FIRST_CALLS, WINDOW, STEADY, MOST_WARM_CALLS = 6, 5, 0.05, 200
UNDISTURBED = 0.01  # of a sample's time may be spent waiting for a processor
CLEAN_ENOUGH = 0.2  # of the pairs must be undisturbed
EMPTY_CALLS, EMPTY_SAMPLES = 20, 101  # a call must cost more than so many empty ones


class NotMeasuredError(RuntimeError):
    """There is no figure, and this is why; the reason stands in its place."""


class CallError(NotMeasuredError):
    """A timed call raised."""

    def __init__(self, name: str, problem: Exception) -> None:
        super().__init__(f"{type(problem).__name__}: {one_line(problem)}")
        self.name = name


@dataclass
class Contestant:
    """One thing that is timed.

    Attributes:
        name: unique in its round.
        call: what is timed.
        before: done before each sample, off the clock; None where a call leaves nothing behind.
        warm_calls: until its time was steady.
        quickest: nanoseconds of the quickest call until then.
    """

    name: str
    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    warm_calls: int = 0
    quickest: float = math.inf


@dataclass(frozen=True)
class Sample:
    """Nanoseconds of one call: on the clock that counts, on the host's, and of them waiting for a processor."""

    ns: float
    host_ns: float
    delay_ns: float = 0.0

    @property
    def clean(self) -> bool:
        return self.delay_ns <= UNDISTURBED * self.host_ns


class Clock(Protocol):
    """Takes one sample: a single call, since repeated ones find their own data in the cache."""

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call, and return its result too."""


class HostClock:
    """Wall time, with the time this thread stood in the processor's queue beside it, where Linux tells."""

    def __init__(self) -> None:
        self._queue = _open_queue()

    def _delay(self) -> int:
        return int(os.pread(self._queue, 64, 0).split()[1]) if self._queue is not None else 0

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
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


class DeviceClock:
    """Time between two events of the device, its L2 flushed before; wall time to the synchronisation beside it."""

    def __init__(self, device: str) -> None:
        self._host = HostClock()
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flush = torch.empty(2 * size, dtype=torch.int8, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._end.record()  # which is when it is made, and must not be between the two

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        self._flush.zero_()

        def until_done() -> Any:
            self._start.record()
            result = call()
            self._end.record()
            torch.cuda.synchronize()  # of the whole device, so that no other stream works on into the next sample
            return result

        torch.cuda.synchronize()
        seen, result = self._host.sample(until_done)
        return Sample(self._start.elapsed_time(self._end) * 1e6, seen.host_ns, seen.delay_ns), result


def clock_for(device: str) -> Clock:
    """The clock of a device type."""
    return HostClock() if device == "cpu" else DeviceClock(device)


@dataclass
class Rounds:
    """What was sampled: by contestant, one sample in every round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, taken: dict[str, Sample]) -> None:
        for name, sample in taken.items():
            self.samples.setdefault(name, []).append(sample)

    @property
    def count(self) -> int:
        return min((len(s) for s in self.samples.values()), default=0)

    def ratio(self, baseline: str, variant: str) -> Ratio:
        """How many times faster than the baseline the variant is.

        Raises:
            NotMeasuredError: too few rounds, or too many of them disturbed.
        """
        pairs = list(zip(self.samples[baseline], self.samples[variant], strict=True))
        clean = [(a, b) for a, b in pairs if a.clean and b.clean]
        share = len(clean) / len(pairs)
        if len(clean) < max(FEWEST_PAIRS, CLEAN_ENOUGH * len(pairs)):
            raise NotMeasuredError(f"too noisy: the processor was undisturbed in {len(clean)} of {len(pairs)} pairs")
        return ratio([math.log(a.ns / b.ns) for a, b in clean], clean=share)

    def seconds(self, name: str) -> float:
        """Median time of one call."""
        return statistics.median(s.ns for s in self.samples[name]) / 1e9

    def is_narrow(self, baseline: str) -> bool:
        """Whether every ratio to the baseline is known well enough."""
        try:
            return all(self.ratio(baseline, name).half_width < NARROW for name in self.samples if name != baseline)
        except NotMeasuredError:
            return False


def warm_up(contestant: Contestant, clock: Clock) -> None:
    """Call until the time is steady.

    Args:
        contestant: whose `warm_calls` and `quickest` are set.
        clock: to time with.

    Raises:
        NotMeasuredError: no steady state, too fast to time, or too slow.
    """
    times: list[float] = []
    while True:
        times.append(primed(contestant, clock, 0)[0].ns)
        calls = FEWEST_ROUNDS * (1 + priming_calls(min(times)))
        if calls * min(times) > LONGEST * 1e9 and len(times) >= UNSETTLED_CALLS:
            raise NotMeasuredError(f"too slow: {min(times) / 1e9:.2g} s a call, {calls} do not fit in {LONGEST:g} s")
        if len(times) >= max(FIRST_CALLS, 2 * WINDOW):
            earlier, later = (statistics.median(times[a:b]) for a, b in ((-2 * WINDOW, -WINDOW), (-WINDOW, None)))
            if abs(math.log(later / earlier)) <= STEADY:
                break
        if len(times) >= MOST_WARM_CALLS:
            raise NotMeasuredError(f"no steady state: in {len(times)} calls")
    contestant.warm_calls, contestant.quickest = len(times) - WINDOW, min(times)
    if later < EMPTY_CALLS * _empty_ns(clock):
        raise NotMeasuredError(f"too fast to time: {later:.0f} ns a call, an empty one takes {_empty_ns(clock):.0f}")


def _empty_ns(clock: Clock) -> float:
    return statistics.median(clock.sample(lambda: None)[0].ns for _ in range(EMPTY_SAMPLES))


def priming_calls(slowest: float) -> int:
    """How many calls go before a timed one, for a contest whose slowest call takes so many nanoseconds.

    The first calls have to fetch the code and data that other contestants drove from the caches: after other code
    a call of 0.1 ms takes up to a third longer, and whoever resembles its neighbours would win.
    """
    return min(MOST_PRIMING, round(PRIMING_NS / slowest))


def primed(contestant: Contestant, clock: Clock, priming: int) -> tuple[Sample, Any]:
    """A sample of the last of several calls in a row, and its result."""
    for _ in range(priming + 1):
        if contestant.before is not None:
            contestant.before()
        sample, result = clock.sample(contestant.call)
    return sample, result


def measure(
    contestants: Sequence[Contestant],
    clock: Clock,
    *,
    seed: int,
    budget: float,
    see: Callable[[str, Any], None] = lambda name, result: None,  # noqa: ARG005
) -> Rounds:
    """Sample everything in rounds, against the first contestant.

    Args:
        contestants: warmed up; the first is the baseline that widths are judged by.
        clock: to time with.
        seed: of the order within each round.
        budget: seconds that the calls of one contestant may take altogether, once there are 12 rounds.
        see: shown the result of the last call of every sample, off the clock.

    Raises:
        CallError: a call raised.
    """
    rounds, order = Rounds(), random.Random(seed)  # noqa: S311 -- a lot, no secret
    spent = dict.fromkeys((c.name for c in contestants), 0.0)
    look, priming = FIRST_LOOK, priming_calls(max(c.quickest for c in contestants))
    gc.collect()
    gc.disable()
    try:
        while rounds.count < FEWEST_ROUNDS or (rounds.count < MOST_ROUNDS and max(spent.values()) < budget * 1e9):
            taken = {}
            for contestant in order.sample(contestants, len(contestants)):
                try:
                    taken[contestant.name], result = primed(contestant, clock, priming)
                except Exception as problem:
                    raise CallError(contestant.name, problem) from problem
                spent[contestant.name] += taken[contestant.name].host_ns * (priming + 1)
                see(contestant.name, result)
                del result
            rounds.add(taken)
            if rounds.count == look:
                if rounds.is_narrow(contestants[0].name):
                    break
                look += look // 2
    finally:
        gc.enable()
    return rounds

"""The meter, on clocks that show the times that a test gives them, and on the clock of the host."""

import gc
import itertools
import math
import os
import random
import time
from pathlib import Path

import pytest

from conformance.errors import NotMeasuredError, TimedCallError
from conformance.figures import meter
from conformance.figures.meter import HostClock, TimedCall, measure, warm_up
from conformance.figures.rounds import Sample


class Scripted:
    """A clock whose time is what the call returns, in nanoseconds; empty calls take none."""

    def __init__(self, delay=0.0):
        self.delay = delay
        self.calls = 0

    def sample(self, call):
        self.calls += 1
        ns = call() or 1e-6
        return Sample(ns, ns, self.delay * ns), ns


def constant(name, ns, **others):
    return TimedCall(name, lambda: ns, **others)


def sequence(name, times):
    pending = iter(times)
    return TimedCall(name, lambda: next(pending))


def test_every_round_holds_every_call_once_in_an_order_of_its_own():
    order = []
    several = [TimedCall(name, lambda name=name: order.append(name) or 1e6) for name in "abc"]
    rounds = measure(several, Scripted(), seed=1, budget=1.0)
    turns = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1
    assert rounds.count == len(turns) == meter.FIRST_LOOK


def test_the_same_seed_gives_the_same_order():
    def order(seed):
        taken = []
        several = [TimedCall(name, lambda name=name: taken.append(name) or 1e6) for name in "abcd"]
        measure(several, Scripted(), seed=seed, budget=0.01)
        return taken

    assert order(3) == order(3) != order(4)


def test_sampling_stops_at_the_first_look_where_all_is_narrow():
    rounds = measure([constant("a", 2e5), constant("b", 1e5)], Scripted(), seed=0, budget=10.0)
    assert rounds.count == meter.FIRST_LOOK
    assert rounds.ratio("a", "b").middle == pytest.approx(2.0)


def test_a_wide_interval_goes_on_until_the_budget_is_spent():
    numbers = random.Random(0)
    wild = TimedCall("b", lambda: 3e5 * math.exp(numbers.gauss(0.0, 1.0)))
    rounds = measure([constant("a", 3e5), wild], Scripted(), seed=0, budget=0.1)
    assert 0.1e9 <= max(sum(s.ns for s in taken) for taken in rounds.samples.values()) < 0.2e9
    assert rounds.ratio("a", "b").verdict == "too noisy"


def test_a_real_difference_does_not_stop_it_earlier():
    """Stopping is a matter of width: a variant twice as fast but wild is sampled like any other."""
    numbers = random.Random(0)
    wild = TimedCall("b", lambda: 1e5 * math.exp(numbers.gauss(0.0, 0.3)))
    rounds = measure([constant("a", 6e5), wild], Scripted(), seed=0, budget=0.1)
    assert rounds.ratio("a", "b").verdict == "faster"
    assert rounds.count > meter.FIRST_LOOK


def test_garbage_is_not_collected_meanwhile():
    seen = []
    measure([TimedCall("a", lambda: seen.append(gc.isenabled()) or 1e6)], Scripted(), seed=0, budget=0.01)
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_warming_up_waits_for_two_windows_that_agree():
    falling = [1e9, 9e6, 8e6, 5e6, 3e6, *[1e6] * 50]
    timed = sequence("a", falling)
    warm_up(timed, Scripted())
    assert timed.warm_calls == 8  # the first window that may count begins after the sixth call
    assert timed.quickest == 1e6


def test_a_time_that_never_settles_gives_no_figure():
    timed = sequence("a", (1e5 * 1.2**n for n in itertools.count()))
    with pytest.raises(NotMeasuredError, match="no steady state: in 200 calls"):
        warm_up(timed, Scripted())


def test_a_slow_call_is_refused_before_it_has_cost_much():
    timed = constant("a", 2e9)
    clock = Scripted()
    with pytest.raises(NotMeasuredError, match=r"too slow: 2 s a call, 12 do not fit in 2 s"):
        warm_up(timed, clock)
    assert clock.calls == meter.UNSETTLED_CALLS


def test_a_call_no_slower_than_an_empty_one_gives_no_figure():
    with pytest.raises(NotMeasuredError, match="too fast to time"):
        warm_up(TimedCall("a", lambda: None), HostClock())


def test_state_is_put_back_before_each_call():
    resets = []
    timed = constant("a", 1e6, before=lambda: resets.append(1))
    warm_up(timed, Scripted())
    assert len(resets) == 2 * meter.WINDOW
    rounds = measure([timed], Scripted(), seed=0, budget=0.0)
    assert rounds.count == meter.FEWEST_ROUNDS
    assert len(resets) == 2 * meter.WINDOW + 2 * meter.FEWEST_ROUNDS  # of two calls in a row the second counts


@pytest.mark.parametrize(
    ("slowest", "priming"), [(1e4, 4), (2.5e5, 4), (3.5e5, 3), (5.5e5, 2), (1e6, 1), (1.9e6, 1), (2.1e6, 0), (5e7, 0)]
)
def test_calls_in_a_row_warm_the_caches(slowest, priming):
    assert meter.priming_calls(slowest) == priming


def test_an_error_names_the_call_that_raised_it():
    def broken():
        raise ValueError("not now")

    with pytest.raises(TimedCallError, match="ValueError: not now") as raised:
        measure([constant("a", 1e5), TimedCall("b", broken)], Scripted(), seed=0, budget=1.0)
    assert raised.value.call == "b"
    assert gc.isenabled()


def test_the_last_of_the_calls_in_a_row_counts_and_all_are_equally_many():
    calls = {"a": 0, "b": 0}

    def of(name, ns):
        def call():
            calls[name] += 1
            return ns + calls[name]

        return TimedCall(name, call, quickest=ns)

    seen = []
    several = [of("a", 1e5), of("b", 3.3e5)]  # the slower one decides: three before
    rounds = measure(several, Scripted(), seed=0, budget=0.0, on_result=lambda name, ns: seen.append((name, ns)))
    assert calls == {"a": 4 * meter.FEWEST_ROUNDS, "b": 4 * meter.FEWEST_ROUNDS}
    assert [s.ns - 1e5 for s in rounds.samples["a"]] == [4 * n for n in range(1, meter.FEWEST_ROUNDS + 1)]
    assert len(seen) == 2 * meter.FEWEST_ROUNDS


def test_the_host_clock_times_one_call_and_returns_its_result():
    counter = itertools.count()
    sample, first = HostClock().sample(lambda: next(counter))
    assert (first, next(counter)) == (0, 1)
    assert sample.ns > 0


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the system does not tell")
def test_the_host_clock_sees_that_it_had_to_wait():
    """Three busy processes on one core: some of our time goes by in the queue."""
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    children = []
    try:
        os.sched_setaffinity(0, core)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                while os.getppid() != 1:
                    pass
                os._exit(0)
            children.append(child)
        sample, _ = HostClock().sample(lambda: _spin(0.3))
        assert not sample.clean
        assert sample.delay_ns > 0.2 * sample.ns
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        os.sched_setaffinity(0, before)


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

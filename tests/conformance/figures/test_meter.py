"""The meter, on clocks that say what a test wants them to."""

import gc
import itertools
import math
import os
import random
import threading
import time
from pathlib import Path

import pytest

from conformance.measure import timing
from conformance.measure.timing import Contestant, HostClock, NotMeasuredError, Rounds, Sample, measure, warm_up


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
    return Contestant(name, lambda: ns, **others)


def sequence(name, times):
    pending = iter(times)
    return Contestant(name, lambda: next(pending))


def test_every_round_holds_every_contestant_once_in_an_order_of_its_own():
    order = []
    members = [Contestant(name, lambda name=name: order.append(name) or 1e6) for name in "abc"]
    rounds = measure(members, Scripted(), seed=1, budget=1.0)
    turns = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1
    assert rounds.count == len(turns) == timing.FIRST_LOOK


def test_the_same_lot_gives_the_same_order():
    def order(seed):
        taken = []
        members = [Contestant(name, lambda name=name: taken.append(name) or 1e6) for name in "abcd"]
        measure(members, Scripted(), seed=seed, budget=0.01)
        return taken

    assert order(3) == order(3) != order(4)


def test_sampling_stops_at_the_first_look_where_all_is_narrow():
    rounds = measure([constant("a", 2e5), constant("b", 1e5)], Scripted(), seed=0, budget=10.0)
    assert rounds.count == timing.FIRST_LOOK
    assert rounds.ratio("a", "b").middle == pytest.approx(2.0)


def test_a_wide_interval_goes_on_until_the_budget_is_spent():
    lot = random.Random(0)
    wild = Contestant("b", lambda: 3e5 * math.exp(lot.gauss(0.0, 1.0)))
    rounds = measure([constant("a", 3e5), wild], Scripted(), seed=0, budget=0.1)
    assert 0.1e9 <= max(sum(s.ns for s in taken) for taken in rounds.samples.values()) < 0.2e9
    assert rounds.ratio("a", "b").verdict == "too noisy"


def test_a_real_difference_does_not_stop_it_earlier():
    """Stopping is a matter of width: a variant twice as fast but wild is sampled like any other."""
    lot = random.Random(0)
    wild = Contestant("b", lambda: 1e5 * math.exp(lot.gauss(0.0, 0.3)))
    rounds = measure([constant("a", 6e5), wild], Scripted(), seed=0, budget=0.1)
    assert rounds.ratio("a", "b").verdict == "faster"
    assert rounds.count > timing.FIRST_LOOK


def test_garbage_is_not_collected_meanwhile():
    seen = []
    measure([Contestant("a", lambda: seen.append(gc.isenabled()) or 1e6)], Scripted(), seed=0, budget=0.01)
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_disturbed_pairs_are_left_out():
    rounds = Rounds()
    for turn in range(20):
        disturbed = turn % 4 == 0
        slow = Sample(9.0, 9.0, 5.0) if disturbed else Sample(2.0, 2.0)
        rounds.add({"a": slow, "b": Sample(1.0, 1.0)})
    found = rounds.ratio("a", "b")
    assert found.middle == pytest.approx(2.0)
    assert (found.pairs, found.clean) == (15, 0.75)


def test_too_many_disturbed_pairs_give_no_figure():
    rounds = Rounds()
    for turn in range(60):
        rounds.add({"a": Sample(2.0, 2.0, 1.0 if turn % 6 else 0.0), "b": Sample(1.0, 1.0)})
    with pytest.raises(NotMeasuredError, match="too noisy: the processor was undisturbed in 10 of 60 pairs"):
        rounds.ratio("a", "b")


def test_warming_up_waits_for_two_windows_that_agree():
    falling = [1e9, 9e6, 8e6, 5e6, 3e6, *[1e6] * 50]
    member = sequence("a", falling)
    warm_up(member, Scripted())
    assert member.warm_calls == 8  # the first window that may count begins after the sixth call
    assert member.quickest == 1e6


def test_a_time_that_never_settles_is_said():
    member = sequence("a", (1e5 * 1.2**n for n in itertools.count()))
    with pytest.raises(NotMeasuredError, match="no steady state: in 200 calls"):
        warm_up(member, Scripted())


def test_a_slow_call_is_said_before_it_has_cost_much():
    member = constant("a", 2e9)
    clock = Scripted()
    with pytest.raises(NotMeasuredError, match=r"too slow: 2 s a call, 12 do not fit in 2 s"):
        warm_up(member, clock)
    assert clock.calls == timing.UNSETTLED_CALLS


def test_a_call_no_slower_than_none_is_said():
    with pytest.raises(NotMeasuredError, match="too fast to time"):
        warm_up(Contestant("a", lambda: None), HostClock())


def test_state_is_put_back_before_each_call():
    resets = []
    member = constant("a", 1e6, before=lambda: resets.append(1))
    warm_up(member, Scripted())
    assert len(resets) == 2 * timing.WINDOW
    rounds = measure([member], Scripted(), seed=0, budget=0.0)
    assert rounds.count == timing.FEWEST_ROUNDS
    assert len(resets) == 2 * timing.WINDOW + 2 * timing.FEWEST_ROUNDS  # of two calls in a row the second counts


@pytest.mark.parametrize(
    ("slowest", "priming"), [(1e4, 4), (2.5e5, 4), (3.5e5, 3), (5.5e5, 2), (1e6, 1), (1.9e6, 1), (2.1e6, 0), (5e7, 0)]
)
def test_calls_in_a_row_warm_the_caches(slowest, priming):
    assert timing.priming_calls(slowest) == priming


def test_a_call_that_raises_is_named():
    def broken():
        raise ValueError("not now")

    with pytest.raises(timing.CallError, match="ValueError: not now") as raised:
        measure([constant("a", 1e5), Contestant("b", broken)], Scripted(), seed=0, budget=1.0)
    assert raised.value.name == "b"
    assert gc.isenabled()


def test_the_last_of_the_calls_in_a_row_counts_and_all_are_equally_many():
    calls = {"a": 0, "b": 0}

    def of(name, ns):
        def call():
            calls[name] += 1
            return ns + calls[name]

        return Contestant(name, call, quickest=ns)

    seen = []
    members = [of("a", 1e5), of("b", 3.3e5)]  # the slower one decides: three before
    rounds = measure(members, Scripted(), seed=0, budget=0.0, see=lambda name, ns: seen.append((name, ns)))
    assert calls == {"a": 4 * timing.FEWEST_ROUNDS, "b": 4 * timing.FEWEST_ROUNDS}
    assert [s.ns - 1e5 for s in rounds.samples["a"]] == [4 * n for n in range(1, timing.FEWEST_ROUNDS + 1)]
    assert len(seen) == 2 * timing.FEWEST_ROUNDS


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
    stop = threading.Event()
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
        stop.set()
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        os.sched_setaffinity(0, before)


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

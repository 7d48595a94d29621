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
from conformance.figures.meter import HostClock, Rounds, Sample, TimedCall, measure, ratio_of, warm_up
from conformance.records.measurements import Ratio


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
    def turns(seed):
        taken = []
        several = [TimedCall(name, lambda name=name: taken.append(name) or 1e6) for name in "abc"]
        rounds = measure(several, Scripted(), seed=seed, budget=1.0)
        assert 3 * rounds.count == len(taken)
        return [tuple(taken[i : i + 3]) for i in range(0, len(taken), 3)]

    assert turns(3) == turns(3) != turns(4)  # the seed decides
    assert {tuple(sorted(turn)) for turn in turns(1)} == {("a", "b", "c")}
    assert len(set(turns(1))) > 1
    assert len(turns(1)) == meter.FIRST_LOOK


def test_sampling_stops_at_the_first_look_where_all_is_narrow():
    rounds = measure([constant("a", 2e5), constant("b", 1e5)], Scripted(), seed=0, budget=10.0)
    assert rounds.count == meter.FIRST_LOOK
    assert rounds.ratio("a", "b").middle == pytest.approx(2.0)


@pytest.mark.parametrize(("base", "ns", "spread", "verdict"), [(3e5, 3e5, 1.0, "too noisy"), (6e5, 1e5, 0.3, "faster")])
def test_a_wide_interval_goes_on_until_the_budget_is_spent_also_if_it_shows_a_difference(base, ns, spread, verdict):
    numbers = random.Random(0)
    wild = TimedCall("b", lambda: ns * math.exp(numbers.gauss(0.0, spread)))
    rounds = measure([constant("a", base), wild], Scripted(), seed=0, budget=0.1)
    assert 0.1e9 <= max(sum(s.ns for s in taken) for taken in rounds.samples.values()) < 0.2e9
    assert rounds.ratio("a", "b").verdict == verdict
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


def rounds_of(*times):
    """Rounds of a baseline "a" that takes 1 and a variant "b" that takes these times, all undisturbed."""
    rounds = Rounds()
    for ns in times:
        rounds.add({"a": Sample(1.0, 1.0), "b": Sample(ns, ns)})
    return rounds


def test_disturbed_pairs_are_left_out():
    rounds = Rounds()
    for turn in range(20):
        disturbed = turn % 4 == 0
        slow = Sample(9.0, 9.0, 5.0) if disturbed else Sample(2.0, 2.0)
        rounds.add({"a": slow, "b": Sample(1.0, 1.0)})
    found = rounds.ratio("a", "b")
    assert found.middle == pytest.approx(2.0)
    assert (found.pairs, found.clean) == (15, 0.75)
    assert rounds.ratio("b", "a").pairs == 15


def test_too_many_disturbed_pairs_give_no_figure():
    rounds = Rounds()
    for turn in range(60):
        rounds.add({"a": Sample(2.0, 2.0, 1.0 if turn % 6 else 0.0), "b": Sample(1.0, 1.0)})
    with pytest.raises(NotMeasuredError) as raised:
        rounds.ratio("a", "b")
    assert raised.value.short == "too noisy"
    assert raised.value.detail == "the processor was undisturbed in 10 of 60 pairs"


@pytest.mark.parametrize(("delay", "clean"), [(0.0, True), (1.0, True), (1.01, False), (50.0, False)])
def test_a_sample_may_wait_for_a_hundredth_of_the_time_on_the_host(delay, clean):
    assert meter.UNDISTURBED == 0.01
    assert Sample(ns=3.0, host_ns=100.0, delay_ns=delay).clean is clean


def test_a_ratio_is_the_time_of_the_baseline_over_that_of_the_variant_and_a_time_the_median():
    rounds = rounds_of(*[4.0] * 10)
    assert rounds.ratio("a", "b").middle == pytest.approx(0.25)
    assert rounds.ratio("b", "a").middle == pytest.approx(4.0)
    assert rounds_of(3e9, 1e9, 8e9).seconds("b") == 3.0


def test_rounds_are_narrow_if_every_ratio_is_known_to_a_hundredth():
    assert meter.NARROW == 0.01
    assert rounds_of(*[1.0, 1.015] * 10).is_narrow("a")
    assert not rounds_of(*[1.0, 1.025] * 10).is_narrow("a")
    assert not rounds_of(*[1.0] * 7).is_narrow("a")  # they have no figure
    rounds = Rounds()
    for turn in range(20):
        rounds.add({"a": Sample(1.0, 1.0), "b": Sample(1.0, 1.0), "c": Sample(1.0 + turn % 2, 1.0)})
    assert not rounds.is_narrow("a")


def test_the_middle_is_the_median_and_the_ends_are_order_statistics():
    found = ratio_of([math.log(x) for x in (1, 2, 3, 4, 5, 6, 7, 8)])
    assert found.middle == pytest.approx(math.sqrt(4 * 5))
    assert (found.low, found.high) == (pytest.approx(1), pytest.approx(8))  # of eight, only all of them hold 99 %
    assert (found.pairs, found.clean, found.processes) == (8, 1.0, 1)


@pytest.mark.parametrize(("pairs", "outside"), [(8, 0), (12, 1), (20, 3), (100, 36)])
def test_ranks_are_those_of_the_binomial_distribution(pairs, outside):
    found = ratio_of([math.log(1 + x) for x in range(pairs)])
    assert found.low == pytest.approx(1 + outside)
    assert found.high == pytest.approx(pairs - outside)


def test_intervals_hold_the_truth_in_99_percent_of_all_cases():
    assert meter.CONFIDENCE == 0.99
    numbers = random.Random(0)
    held = 0
    for _ in range(2000):
        found = ratio_of([numbers.choice((0.3, 1.0)) * numbers.gauss(0.0, 1.0) for _ in range(30)])
        held += found.low <= 1.0 <= found.high
    assert 0.985 <= held / 2000 <= 0.999


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.031, 1.2, "faster"),
        (1.03, 1.2, "too noisy"),
        (0.98, 1.02, "same"),
        (0.95, 1.02, "too noisy"),
        (0.5, 0.97, "slower"),
        (0.5, 0.98, "too noisy"),
        (0.5, 2.0, "too noisy"),
    ],
)
def test_a_verdict_needs_an_interval_clear_of_the_margin(low, high, verdict):
    assert Ratio(math.sqrt(low * high), low, high, 100).verdict == verdict


def test_a_claim_must_come_true_in_every_process():
    quick, same = Ratio(1.2, 1.1, 1.3, 50, 0.9), Ratio(1.0, 0.99, 1.01, 70, 1.0)
    both = meter.pooled_ratio([quick, same])
    assert (both.low, both.high, both.pairs, both.clean, both.processes) == (0.99, 1.3, 120, 0.9, 2)
    assert both.middle == pytest.approx(math.sqrt(1.2))
    assert both.verdict == "too noisy"


SAME, SLOWER = Ratio(1.0, 0.99, 1.01, 100), Ratio(0.91, 0.9, 0.92, 100)


@pytest.mark.parametrize("same", [SAME, Ratio(1.0, 0.9, 1.1, 100)], ids=["sound", "too noisy to tell apart"])
def test_copies_without_a_difference_raise_no_alarm(same):
    meter.check_controls(same=same, slower=SLOWER)


COPIES, WORK = "control failed: two copies of one model came out", "too noisy: the meter could not see 10 % more work"


@pytest.mark.parametrize(
    ("same", "slower", "said"),
    [
        (Ratio(1.1, 1.04, 1.2, 100), SLOWER, COPIES),
        (Ratio(0.9, 0.8, 0.96, 100), SLOWER, COPIES),
        (SAME, SAME, WORK),
        (SAME, Ratio(0.93, 0.88, 0.98, 100), WORK),
        (SAME, Ratio(1.1, 1.05, 1.2, 100), WORK),
    ],
)
def test_a_difference_between_copies_or_none_where_work_was_added_voids_the_figures(same, slower, said):
    with pytest.raises(NotMeasuredError, match=said) as raised:
        meter.check_controls(same=same, slower=slower)
    assert raised.value.short == said.partition(":")[0]

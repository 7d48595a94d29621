"""What was sampled in rounds: ratios of undisturbed pairs, and when they are known well enough."""

import pytest

from conformance.errors import NotMeasuredError
from conformance.figures.rounds import NARROW, UNDISTURBED, Rounds, Sample


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


def test_too_many_disturbed_pairs_give_no_figure():
    rounds = Rounds()
    for turn in range(60):
        rounds.add({"a": Sample(2.0, 2.0, 1.0 if turn % 6 else 0.0), "b": Sample(1.0, 1.0)})
    with pytest.raises(NotMeasuredError) as raised:
        rounds.ratio("a", "b")
    assert raised.value.short == "too noisy"
    assert raised.value.detail == "the processor was undisturbed in 10 of 60 pairs"


def test_a_pair_is_disturbed_if_either_call_waited():
    rounds = Rounds()
    for turn in range(20):
        rounds.add({"a": Sample(2.0, 2.0), "b": Sample(1.0, 1.0, 0.5 if turn < 5 else 0.0)})
    assert rounds.ratio("a", "b").pairs == 15


@pytest.mark.parametrize(("delay", "clean"), [(0.0, True), (1.0, True), (1.01, False), (50.0, False)])
def test_a_sample_may_wait_for_a_hundredth_of_the_time_on_the_host(delay, clean):
    assert UNDISTURBED == 0.01
    assert Sample(ns=3.0, host_ns=100.0, delay_ns=delay).clean is clean


def test_a_ratio_is_the_time_of_the_baseline_over_that_of_the_variant():
    rounds = rounds_of(*[4.0] * 10)
    assert rounds.ratio("a", "b").middle == pytest.approx(0.25)
    assert rounds.ratio("b", "a").middle == pytest.approx(4.0)


def test_the_time_of_a_call_is_the_median():
    assert rounds_of(3e9, 1e9, 8e9).seconds("b") == 3.0


def test_rounds_are_narrow_if_every_ratio_is_known_to_a_hundredth():
    assert NARROW == 0.01
    assert rounds_of(*[1.0, 1.015] * 10).is_narrow("a")
    assert not rounds_of(*[1.0, 1.025] * 10).is_narrow("a")


def test_rounds_without_a_figure_are_not_narrow():
    assert not rounds_of(*[1.0] * 7).is_narrow("a")


def test_a_wide_interval_of_one_call_keeps_all_from_being_narrow():
    rounds = Rounds()
    for turn in range(20):
        rounds.add({"a": Sample(1.0, 1.0), "b": Sample(1.0, 1.0), "c": Sample(1.0 + turn % 2, 1.0)})
    assert not rounds.is_narrow("a")

"""The ratio that pairs of times give: the interval of a median, and verdicts with a margin."""

import math
import random

import pytest

from conformance.figures.ratio import CONFIDENCE, pooled_ratio, ratio_of
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import Ratio


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


def test_seven_pairs_have_no_interval():
    with pytest.raises(ValueError, match="needs 8 pairs, got 7"):
        ratio_of([0.0] * 7)


def test_intervals_hold_the_truth_in_99_percent_of_all_cases():
    assert CONFIDENCE == 0.99
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
    both = pooled_ratio([quick, same])
    assert (both.low, both.high, both.pairs, both.clean, both.processes) == (0.99, 1.3, 120, 0.9, 2)
    assert both.middle == pytest.approx(math.sqrt(1.2))
    assert both.verdict == "too noisy"


def test_a_ratio_survives_storage():
    found = Ratio(1.23456789, 1.2, 1.3, 50, 0.9, 2)
    assert from_json(Ratio, to_json(found)) == Ratio(1.2346, 1.2, 1.3, 50, 0.9, 2)

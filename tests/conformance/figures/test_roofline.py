"""The share of the limit that a call reached, and the ceiling that it is held to."""

import pytest

from conformance.figures.crossover import byte_rate, share

RATES = [[16, 5.0], [64, 9.0], [256, 7.0], [1024, 2.0]]


def test_share_is_the_larger_of_the_two_limits():
    assert share(flops=30, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.5  # 5 s to multiply, 4 to move
    assert share(flops=6, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.4
    assert share(flops=0, least_bytes=4, seconds=2, flop_rate=6, byte_rate=1) == 2.0  # the byte model is wrong
    assert share(flops=0, least_bytes=0, seconds=2, flop_rate=6, byte_rate=1) == 0.0


@pytest.mark.parametrize("wrong", ["seconds", "flop_rate", "byte_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_share_wants_time_and_rates_above_zero(wrong, value):
    given = {"flops": 1, "least_bytes": 1, "seconds": 1.0, "flop_rate": 1.0, "byte_rate": 1.0, wrong: value}
    with pytest.raises(ValueError, match="share: seconds, flop_rate and byte_rate must be above 0, got"):
        share(**given)


@pytest.mark.parametrize("wrong", ["flops", "least_bytes"])
def test_share_wants_no_negative_work(wrong):
    given = {"flops": 1, "least_bytes": 1, "seconds": 1.0, "flop_rate": 1.0, "byte_rate": 1.0, wrong: -1}
    with pytest.raises(ValueError, match="share: flops and least_bytes must not be negative, got"):
        share(**given)


@pytest.mark.parametrize(
    ("least_bytes", "rate"),
    [
        (0, 9.0),  # smaller than all: the best there is
        (16, 9.0),  # the small size is slowed by the cost of a call
        (63, 9.0),
        (64, 9.0),
        (255, 9.0),  # the size below, in a cache that is no slower
        (256, 7.0),
        (1023, 7.0),
        (1024, 2.0),
        (10**9, 2.0),
    ],
)
def test_the_ceiling_is_that_of_the_size_below_or_of_any_larger(least_bytes, rate):
    assert byte_rate(RATES, least_bytes) == rate


def test_without_rates_there_is_no_ceiling():
    with pytest.raises(ValueError, match="byte_rate: rates must hold at least one size, got none"):
        byte_rate([], 1)

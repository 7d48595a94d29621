"""Where a variant pays, in words: no more than the verdicts say; and the share of the limit that a call reached."""

import pytest

from conformance.figures.crossover import NOT_MEASURED, Point, byte_rate, crossover, share
from conformance.records.measurements import Ratio, Reason

RATIOS = {
    "f": Ratio(2.0, 1.9, 2.1, pairs=20),
    "s": Ratio(0.5, 0.4, 0.6, pairs=20),
    "=": Ratio(1.0, 0.99, 1.01, pairs=20),
    "n": Ratio(1.5, 0.9, 2.5, pairs=20),
    "-": None,
}
SIZES = (16, 64, 256, 1024)


def said(letters, reason=NOT_MEASURED):
    """The line on verdicts given by letter, at 16, 64, 256 and 1024."""
    points = [Point(size, RATIOS[c], reason) for size, c in zip(SIZES, letters, strict=False)]
    return crossover(points, "width")


@pytest.mark.parametrize(
    ("letters", "line"),
    [
        ("ssff", "pays from width 256 on"),
        ("===f", "pays from width 1024 on"),
        ("ff=s", "pays up to width 64"),
        ("fsss", "pays up to width 16"),
        ("ffff", "pays at every size tried (16 to 1024)"),
        ("s=s=", "never pays up to width 1024"),
        ("sff=", "pays between width 64 and 256"),
        ("sfss", "pays only at width 64"),
        ("f", "pays at width 16, the only size tried"),
        ("=", "does not pay at width 16, the only size tried"),
        ("fsff", "no clear answer: faster at 16, slower at 64, faster at 256 to 1024"),
        ("f==f", "no clear answer: faster at 16, the same at 64 to 256, faster at 1024"),
        ("f=sf", "no clear answer: faster at 16, the same at 64, slower at 256, faster at 1024"),
        ("fsnf", "no clear answer: faster at 16, slower at 64, faster at 1024 (256: too noisy)"),
        ("snff", "pays from width 256 on (64: too noisy)"),
        ("s-ff", "pays from width 256 on (64: not measured)"),
        ("nfff", "pays from width 64 on (16: too noisy)"),
        ("fffn", "pays up to width 256 (1024: too noisy)"),
        ("fn-f", "pays from width 16 to 1024 (64: too noisy; 256: not measured)"),
        ("nffn", "pays between width 64 and 256 (16, 1024: too noisy)"),
        ("sfnn", "pays at width 64 (256, 1024: too noisy)"),
        ("ss=n", "never pays up to width 256 (1024: too noisy)"),
        ("nnnn", "no clear answer (16, 64, 256, 1024: too noisy)"),
        ("n--n", "no clear answer (16, 1024: too noisy; 64, 256: not measured)"),
        ("----", "nothing measured (16, 64, 256, 1024: not measured)"),
    ],
)
def test_the_line_says_where_it_pays_and_names_sizes_without_a_clear_verdict(letters, line):
    assert said(letters) == line


def test_sizes_without_a_ratio_are_listed_by_their_short_reason_on_one_line():
    reason = Reason("out of\nmemory", "24 GiB are too few")
    assert said("ff--", reason) == "pays up to width 64 (256, 1024: out of memory)"
    points = [Point(16, RATIOS["f"]), *(Point(n, None, Reason("too slow", f"{n} s a call")) for n in (64, 256))]
    assert crossover(points, "width") == "pays up to width 16 (64, 256: too slow)"
    points = [Point(256, RATIOS["f"]), Point(16, RATIOS["s"]), Point(1024, RATIOS["f"]), Point(64, RATIOS["s"])]
    assert crossover(points, "n") == "pays from n 256 on"  # in any order


RATES = [[16, 5.0], [64, 9.0], [256, 7.0], [1024, 2.0]]


def test_share_is_the_larger_of_the_two_limits():
    assert share(flops=30, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.5  # 5 s to multiply, 4 to move
    assert share(flops=6, least_bytes=4, seconds=10, flop_rate=6, byte_rate=1) == 0.4
    assert share(flops=0, least_bytes=4, seconds=2, flop_rate=6, byte_rate=1) == 2.0  # the byte model is wrong
    assert share(flops=0, least_bytes=0, seconds=2, flop_rate=6, byte_rate=1) == 0.0


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

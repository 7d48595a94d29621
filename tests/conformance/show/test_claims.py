"""The verdict on a published claim over sizes, and the page that shows it."""

import pytest

from conformance.figures.crossover import NOT_MEASURED, Point
from conformance.records.claims import PublishedClaim
from conformance.records.measurements import Ratio, Reason
from conformance.show import claims
from conformance.show.claims import Replica, figure, word

TEXT = "a|b pays"


def ratio(middle, low, high):
    return Ratio(middle, low, high, pairs=20, processes=3)


HOLDS, SOME, NONE, LOSS, NOISE = (
    ratio(2.0, 1.9, 2.1),
    ratio(1.5, 1.4, 1.6),
    ratio(1.0, 0.99, 1.01),
    ratio(0.5, 0.4, 0.6),
    ratio(1.0, 0.8, 1.3),
)


def claim(**changes):
    told = {"model": "new", "size_name": "rows", "sizes": (8, 64), "text": TEXT, "source": "a post", "factor": 2.0}
    told |= {"quantity": "forward", "baseline": "old", "device": "cpu"}
    told |= {"mode": "eager", "precision": "fp32", "baseline_mode": "eager", "baseline_precision": "fp32"}
    return PublishedClaim(**(told | changes))


@pytest.mark.parametrize(
    ("found", "factor", "expected"),
    [
        (ratio(2.0, 1.80, 2.2), 2.0, "reproduced"),
        (ratio(2.0, 1.79, 2.2), 2.0, "weaker"),
        (ratio(90.0, 80.2, 99.0), 100.0, "reproduced"),
        (ratio(90.0, 80.1, 99.0), 100.0, "weaker"),
        (ratio(9.0, 8.9, 9.1), 2.0, "reproduced"),
        (ratio(1.025, 1.02, 1.03), 1.02, "same"),
        (ratio(1.03, 1.028, 1.04), 1.02, "too noisy"),
        (NONE, 1.5, "same"),
        (LOSS, 1.5, "worse"),
        (NOISE, 1.5, "too noisy"),
    ],
)
def test_four_fifths_of_a_published_gain_reproduce_it(found, factor, expected):
    assert word(found, factor) == expected


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((HOLDS, HOLDS), "reproduced"),
        ((SOME, SOME), "weaker"),
        ((HOLDS, SOME), "size-dependent"),
        ((HOLDS, NONE), "size-dependent"),
        ((LOSS, SOME), "size-dependent"),
        ((NONE, NONE), "not reproduced"),
        ((LOSS, NONE), "not reproduced"),
        ((HOLDS, NOISE), "reproduced"),
        ((HOLDS, None), "reproduced"),
        ((NONE, None), "not reproduced"),
        ((NOISE, None), "no figure"),
        ((None, None), "no figure"),
    ],
)
def test_the_verdict_over_sizes_is_that_of_those_with_a_clear_answer(found, verdict):
    points = tuple(
        Point(size, r, NOT_MEASURED if r else Reason("too slow", "9 s")) for size, r in zip((8, 64), found, strict=True)
    )
    assert Replica(claim(), points).verdict == verdict


def test_a_figure_without_a_ratio_is_the_reason_in_short():
    assert figure(Point(8, None, Reason("FAIL", "new@8, gate norm")), 2.0) == "FAIL"
    assert figure(Point(8, NOISE), 2.0) == "~1.00 [0.80, 1.30] too noisy"
    assert figure(Point(8, ratio(1.5, 1.5, 1.5)), 2.0) == "▲1.50 weaker"


def rows_of(page):
    return [line for line in page.splitlines() if line.startswith("|")]


def row(replica):
    return rows_of(claims.page("here", [replica]))[2]


def test_a_row_has_claim_published_factor_measured_sizes_and_verdict():
    expected = (
        "| a\\|b pays<br>`new[eager-fp32]` against `old[eager-fp32]`, forward | 2×: a post "
        "| on cpu, by rows<br>8: ▲2.00 [1.90, 2.10] reproduced<br>64: ▲2.00 [1.90, 2.10] reproduced | reproduced |"
    )
    assert row(Replica(claim(), (Point(8, HOLDS), Point(64, HOLDS)))) == expected


def test_a_row_whose_sizes_disagree_names_the_size_from_which_it_pays():
    assert row(Replica(claim(), (Point(8, LOSS), Point(64, HOLDS)))).endswith(
        "8: ▼0.50 [0.40, 0.60] worse<br>64: ▲2.00 [1.90, 2.10] reproduced | size-dependent: pays from rows 64 on |"
    )


def test_a_row_with_a_gain_at_every_size_names_the_sizes_that_reproduce_it():
    assert row(Replica(claim(), (Point(8, SOME), Point(64, HOLDS)))).endswith(
        "| size-dependent: a gain everywhere, reproduced at rows 64 |"
    )


def test_a_row_of_an_absent_device_has_no_sizes():
    one = claim(device="cuda", mode="compiled", precision="amp_fp16", baseline="new", quantity="peak", factor=1.25)
    assert row(Replica(one, is_absent=True)) == (
        "| a\\|b pays<br>`new[compiled-amp_fp16]` against `new[eager-fp32]`, peak bytes of forward and backward "
        "| 1.25×: a post |  | needs CUDA |"
    )


def test_missing_figures_are_explained_once_under_the_table():
    replica = Replica(claim(), (Point(8, HOLDS), Point(64, None, Reason("too slow", "9 s a call"))))
    page = claims.page("torch 9 · 1 thread", [replica, replica])
    assert "\ntorch 9 · 1 thread\n" in page
    assert rows_of(page)[0] == "| claim | published | measured | verdict |"
    assert page.endswith("Why figures are missing:\n\n- `new@64[eager-fp32-cpu]`: too slow: 9 s a call\n")
    assert len(rows_of(page)) == 4

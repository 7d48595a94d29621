"""Which versions a bisection tries, and what it concludes from them."""

from itertools import product

import pytest

from conformance.commands.bisect import Row, findings, search, versions
from conformance.errors import UsageError
from conformance.torch_versions import VERSIONS

KNOWN = ("2.4.1", "2.6.0", "2.8.0", "2.10.0", "2.11.0")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("2.6.0", ("2.6.0",)),
        ("2.6.0..2.10.0", ("2.6.0", "2.8.0", "2.10.0")),
        ("2.5.0..2.9.9", ("2.5.0", "2.6.0", "2.8.0", "2.9.9")),
        ("2.8.0,2.6.0", ("2.6.0", "2.8.0")),
        ("2.10.0, 2.8.0 .. 2.10.0, 2.7.0", ("2.7.0", "2.8.0", "2.10.0")),
        ("2.6.0..2.6.0", ("2.6.0",)),
        ("2.11.0..2.16.0.dev20261120", ("2.11.0", "2.16.0.dev20261120")),
        ("2.6.0+cpu,2.6.0", ("2.6.0", "2.6.0+cpu")),
    ],
)
def test_a_range_takes_its_ends_and_the_known_versions_between(asked, chosen):
    assert versions(asked, KNOWN) == chosen


@pytest.mark.parametrize(
    "asked", ["", "latest", "2.6.0..", "..2.6.0", "2.6.0,,2.8.0", "2.6.0...2.8.0", "--all", "2.6;x"]
)
def test_what_is_no_version_is_refused_with_an_example(asked):
    with pytest.raises(UsageError, match=r"^--torch .*: want versions such as 2\.6\.0\.\.2\.15\.0 or 2\.6\.0,2\.8\.0"):
        versions(asked, KNOWN)


def test_a_range_that_ends_before_it_starts_is_refused():
    with pytest.raises(UsageError, match=r"--torch 2\.10\.0\.\.2\.9\.1: 2\.10\.0 is newer than 2\.9\.1"):
        versions("2.10.0..2.9.1", KNOWN)


def searched(verdicts, *, every=False):
    """The places that are tried, in order, and the rows; a verdict "" stands for a version that cannot be judged."""
    names = [f"2.{place}.0" for place in range(len(verdicts))]
    rows = list(search(names, lambda name: Row(name, verdicts[names.index(name)], "why"), every=every))
    return [names.index(row.version) for row in rows], rows, names


def test_every_single_change_among_versions_that_can_be_judged_is_found():
    for change in range(1, len(VERSIONS)):
        tried, rows, names = searched(["PASS"] * change + ["FAIL"] * (len(VERSIONS) - change))
        assert list(findings(rows, names)) == [f"PASS in {names[change - 1]}, FAIL in {names[change]}"]
        assert len(tried) == len(set(tried)) <= 6


def test_versions_that_cannot_be_judged_are_passed_over():
    """Every pattern of six versions: the search ends, tries none twice, and what it concludes is true and narrow."""
    for verdicts in product(("PASS", "FAIL", ""), repeat=6):
        tried, rows, names = searched(verdicts)
        assert len(tried) == len(set(tried))
        judged = [place for place, verdict in enumerate(verdicts) if verdict]
        assert (not judged) or {judged[0], judged[-1]} <= set(tried)
        if len(judged) < 2 or verdicts[judged[0]] == verdicts[judged[-1]]:
            continue
        (change, *_) = [line for line in findings(rows, names) if line.startswith(f"{verdicts[judged[0]]} in ")]
        low, high = (names.index(part.split()[0]) for part in change.replace(",", "").split(" in ")[1:3])
        assert verdicts[low] == verdicts[judged[0]] != verdicts[high] != ""
        assert not any(verdicts[place] for place in range(low + 1, high))


def test_equal_ends_end_the_search_and_say_what_was_not_tried():
    tried, rows, names = searched(["PASS", "FAIL", "PASS"])
    assert tried == [0, 2]
    assert list(findings(rows, names)) == [
        "no change: PASS in each version that was judged (2.1.0 was not tried, see --all)"
    ]


def test_all_versions_are_tried_if_asked_and_every_change_is_named():
    tried, rows, names = searched(["PASS", "FAIL", "", "PASS", "PASS"], every=True)
    assert tried == [0, 1, 2, 3, 4]
    assert list(findings(rows, names)) == [
        "PASS in 2.0.0, FAIL in 2.1.0",
        "FAIL in 2.1.0, PASS in 2.3.0 (2.2.0 could not be judged)",
    ]


@pytest.mark.parametrize("verdicts", [[], [""], ["PASS"], ["", ""], ["", "PASS", ""]])
def test_less_than_two_verdicts_show_no_change(verdicts):
    tried, rows, names = searched(verdicts)
    assert sorted(tried) == list(range(len(verdicts)))
    assert list(findings(rows, names)) == [
        "fewer than two versions were judged, so nothing shows whether the verdict changed"
    ]


def test_an_interrupted_search_has_told_what_it_knows():
    def judge(version):
        if version == "2.8.0":
            raise KeyboardInterrupt
        return Row(version, {"2.4.1": "PASS"}.get(version, "FAIL"))

    rows = search(KNOWN, judge)
    assert [next(rows).version, next(rows).version] == ["2.4.1", "2.11.0"]
    with pytest.raises(KeyboardInterrupt):
        next(rows)

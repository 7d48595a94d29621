"""Decides which versions of torch a bisection tries, and between which of them the verdict changed. It runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from conformance.errors import UsageError

RANGE = ".."


@dataclass(frozen=True)
class Row:
    """What one version gave.

    Attributes:
        version: the version of torch.
        verdict: the status of the cell; "" if it was not judged.
        detail: the margin or the reason, or why the cell was not judged.
    """

    version: str
    verdict: str
    detail: str = ""


def versions(asked: str, known: Sequence[str]) -> tuple[str, ...]:
    """The versions that a person asks for, in order, each once.

    Args:
        asked: versions and ranges, separated by commas. The ends of a range belong to it.
        known: the versions that a range takes between its ends.

    Raises:
        UsageError: a part is no version, or a range ends before it starts.

    >>> versions("2.6.0..2.8.1,2.4.1", ("2.7.1", "2.8.0", "2.9.1"))
    ('2.4.1', '2.6.0', '2.7.1', '2.8.0', '2.8.1')
    """
    chosen: dict[Version, str] = {}
    for part in asked.split(","):
        first, dots, last = (text.strip() for text in part.partition(RANGE))
        ends = [_version(asked, text) for text in ((first, last) if dots else (first,))]
        if ends[0] > ends[-1]:
            raise UsageError(f"--torch {asked}: {first} is newer than {last}")
        between = [text for text in known if ends[0] < Version(text) < ends[-1]]
        for text in (first, *between, *([last] if dots else [])):
            chosen.setdefault(Version(text), text)
    return tuple(chosen[version] for version in sorted(chosen))


def _version(asked: str, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"--torch {asked}: want versions such as 2.6.0..2.15.0 or 2.6.0,2.8.0, got {text!r}") from None


def search(tried: Sequence[str], judge: Callable[[str], Row], *, every: bool = False) -> Iterator[Row]:
    """Try versions until the last one with the verdict of the first, and the one after it, are known.

    A version that cannot be judged is passed over for its neighbours. If both ends have one verdict, no other version
    is tried.

    Args:
        tried: the versions, in order.
        judge: tries one.
        every: try all of them.

    Yields:
        The rows, as they become known.
    """
    if every:
        yield from map(judge, tried)
        return
    rows: dict[int, Row] = {}

    def attempt(places: Sequence[int]) -> Iterator[Row]:
        """Try places until one is judged."""
        for place in places:
            rows[place] = judge(tried[place])
            yield rows[place]
            if rows[place].verdict:
                return

    yield from attempt(range(len(tried)))
    yield from attempt([place for place in reversed(range(len(tried))) if place not in rows])
    judged = sorted(place for place, row in rows.items() if row.verdict)
    if not judged or rows[judged[0]].verdict == rows[judged[-1]].verdict:
        return
    low, high = judged
    while left := [place for place in range(low + 1, high) if place not in rows]:
        middle = min(left, key=lambda place: abs(2 * place - low - high))
        yield from attempt([middle])
        if rows[middle].verdict:
            low, high = (middle, high) if rows[middle].verdict == rows[low].verdict else (low, middle)


def findings(rows: Sequence[Row], tried: Sequence[str]) -> Iterator[str]:
    """Between which versions the verdict changed, one line for each change.

    Args:
        rows: what is known, in any order.
        tried: all versions that were asked for, in order.
    """
    known = {row.version: row for row in rows}
    judged = [version for version in tried if version in known and known[version].verdict]
    if len(judged) < 2:  # noqa: PLR2004 -- a change needs two
        yield "fewer than two versions were judged, so nothing shows whether the verdict changed"
        return
    changes = [(a, b) for a, b in pairwise(judged) if known[a].verdict != known[b].verdict]
    for before, after in changes:
        between = tried[tried.index(before) + 1 : tried.index(after)]
        yield f"{known[before].verdict} in {before}, {known[after].verdict} in {after}{_open(between, known)}"
    if not changes:
        between = [version for version in tried if version not in known]
        same = known[judged[0]].verdict
        yield f"no change: {same} in each version that was judged{_open(between, known)}"


def _open(between: Sequence[str], known: dict[str, Row]) -> str:
    """What stays open about the versions between two others."""
    failed = [version for version in between if version in known]
    untried = [version for version in between if version not in known]
    parts = [f"{', '.join(failed)} could not be judged"] if failed else []
    parts += [f"{', '.join(untried)} was not tried, see --all"] if untried else []
    return f" ({'; '.join(parts)})" if parts else ""

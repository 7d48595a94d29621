"""Compares two stored runs cell by cell: verdicts, dtypes, errors and speeds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from conformance.figures.speed import Speed, speeds
from conformance.records.cell import Verdict
from conformance.records.measurements import MARGIN, Ratio
from conformance.records.plan import Environment, in_words
from conformance.store.run_files import Summary

KINDS = {  # what may have changed, in the order of a report
    "new red": "red, and not red before",
    "verdict changed": "another verdict",
    "dtype changed": "a tensor has another dtype",
    "error up": "the worst error has more than doubled, and is past half of its budget",
    "mended": "red before, and not red",
    "speed": "the intervals of the two speeds have nothing in common",
    "only in A": "the second run has no such cell",
    "only in B": "the first run has no verdict on it",
}
DECIDING = ("new red", "verdict changed")  # with one of these the exit code is 1
OF_PLANS = ("seed", "deadline", "measure", "shard", "depth")  # what of two plans is compared
MORE, HALF = 2.0, 0.5
LOST = ("SKIPPED", "NOTRUN")  # no verdict on the model


@dataclass(frozen=True)
class Change:
    """One thing that differs between two runs."""

    kind: str  # a key of `KINDS`
    cell: str  # id of the cell
    before: str  # what the first run says
    after: str  # what the second run says
    text: str = ""  # the reason that the second run gives, on one line


@dataclass(frozen=True)
class Comparison:
    """What has changed from one run, in folder a, to another, in folder b."""

    a: str
    b: str
    differs: Mapping[str, tuple[str, str]]  # what differs between their environments and their plans, by name
    changes: tuple[Change, ...]  # those first that matter most

    @property
    def is_worse(self) -> bool:
        """Whether a cell is newly red or has another verdict."""
        return any(change.kind in DECIDING for change in self.changes)


def compare(before: Summary, after: Summary) -> Comparison:
    """Compare two runs.

    Raises:
        UsageError: the records of a run are damaged.
    """
    cells = dict.fromkeys([*before.selected, *after.selected])
    found = [change for cell in cells for change in _of_cell(cell, before, after)]
    found += _speeds(before, after)
    found.sort(key=lambda change: list(KINDS).index(change.kind))
    return Comparison(str(before.folder), str(after.folder), _differing(before, after), tuple(found))


def _differing(before: Summary, after: Summary) -> dict[str, tuple[str, str]]:
    one, other = before.plan, after.plan
    names = [field.name for field in fields(Environment)]
    found = {name: (getattr(one.environment, name), getattr(other.environment, name)) for name in names}
    found |= {name: (getattr(one, name), getattr(other, name)) for name in OF_PLANS}
    told = {name: (in_words(was), in_words(now)) for name, (was, now) in found.items()}
    return {name: (was, now) for name, (was, now) in told.items() if was != now}


def _of_cell(cell: str, before: Summary, after: Summary) -> Iterator[Change]:
    was, now = _verdict(cell, before), _verdict(cell, after)
    then, new = was.status if was else "", now.status if now else ""
    reason = (now.text or now.reason) if now else ""
    if was is None or then in LOST:
        if now is None or (then and new in LOST):
            return
        yield Change("only in B", cell, then, new, reason)
        if now.red:
            yield Change("new red", cell, then, new, reason)
    elif now is None:
        yield Change("only in A", cell, then, "")
    elif was.red != now.red:
        yield Change("new red" if now.red else "mended", cell, then, new, reason)
    elif then != new:
        yield Change("verdict changed", cell, then, new, reason)
    if was is not None and now is not None:
        yield from _of_numbers(cell, before, after, was, now)


def _verdict(cell: str, run: Summary) -> Verdict | None:
    """The verdict on a cell; NOTRUN if it was to be judged, None if the run does not know it."""
    missing = Verdict(cell, "NOTRUN", "the run is incomplete") if cell in run.selected else None
    return run.verdicts.get(cell, missing)


def _of_numbers(cell: str, before: Summary, after: Summary, was: Verdict, now: Verdict) -> Iterator[Change]:
    then, new = (run.dtypes(cell) for run in (before, after))
    for place in then.keys() & new.keys() if then != new else ():
        if then[place] != new[place]:
            yield Change("dtype changed", cell, then[place], new[place], f"{place[1]}, case {place[0]}")
    low, high = was.margin, now.margin
    if low is not None and high is not None and not now.red and high > MORE * low and high > HALF:
        yield Change("error up", cell, f"{low:.2g} of the budget", f"{high:.2g}")


def _speeds(before: Summary, after: Summary) -> Iterator[Change]:
    then, new = (speeds(run) if run.plan.measure else {} for run in (before, after))
    for cell in [cell for cell in then if cell in new]:
        one, other = _ratio(then[cell]), _ratio(new[cell])
        if one is None or other is None or then[cell].figure != new[cell].figure:
            continue
        apart = one.high < other.low or other.high < one.low
        if apart and not 1 / MARGIN <= other.middle / one.middle <= MARGIN:
            yield Change("speed", cell, _interval(one), _interval(other), "times eager fp32")


def _ratio(speed: Speed) -> Ratio | None:
    return next(iter(speed.ratios.values()), None)


def _interval(ratio: Ratio) -> str:
    return f"{ratio.middle:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"

"""Compares stored runs: two of them cell by cell, or many through torch versions, each cell and each probe in an atlas.

An atlas says since when it works, where it broke, where it was mended. It is made of runs and of an earlier atlas,
written to a file and read from it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from packaging.version import InvalidVersion, Version

from conformance.errors import RecordError, UsageError
from conformance.figures.speed import Speed, speeds
from conformance.records.cell import STATUSES, Cell, Verdict
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import MARGIN, Ratio
from conformance.records.plan import ALL_CASES, Environment, Judge, PlannedCell, in_words
from conformance.records.tasks import ProbeFinding, ProbeRun
from conformance.store import files
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


# Follows each cell and each probe through torch versions: since when it works, where it broke, where it was mended.
# An atlas is made of runs and of an earlier atlas, written to a file and read from it.

WORKS, OTHER_DTYPE, DECLARED, RED = "works", "another dtype", "does not work", "red"
SHOWN, CORRECT = "shows", "correct"
OF_PROBES = {"EXPECTED": SHOWN, "FAIL": SHOWN, "PASS": CORRECT, "STALE": CORRECT}
StateT = TypeVar("StateT")


@dataclass(frozen=True)
class State:
    """How a cell is in one version."""

    kind: str  # `WORKS`; `OTHER_DTYPE` or `DECLARED`, both as declared; or `RED`
    status: str  # of the verdict
    short: str = ""  # its few words
    reason: str = ""  # the declared reason, or the text of a red verdict
    link: str = ""

    @property
    def works(self) -> bool:
        """Whether the cell computes what it should, apart from declared dtypes."""
        return self.kind in (WORKS, OTHER_DTYPE)


@dataclass(frozen=True)
class History:
    """One cell in several versions, the oldest first; a version that did not judge it is left out."""

    cell: Cell
    states: Mapping[str, State] = field(default_factory=dict)

    @property
    def since(self) -> str:
        """The first version in which it works; "" if there is none."""
        return next((version for version, state in self.states.items() if state.works), "")

    @property
    def broke(self) -> tuple[str, ...]:
        """The versions in which it does not work, and did in the one before."""
        return self._turns(lambda before, now: before and not now)

    @property
    def mended(self) -> tuple[str, ...]:
        """The versions in which it works again."""
        turned = self._turns(lambda before, now: now and not before)
        return tuple(version for version in turned if version != self.since)

    def _turns(self, turned: Callable[[bool, bool], bool]) -> tuple[str, ...]:
        known = self.states.items()
        return tuple(version for (_, before), (version, now) in pairwise(known) if turned(before.works, now.works))


@dataclass(frozen=True)
class Fault:
    """One known fault of torch on one device, in several versions, the oldest first."""

    probe: ProbeFinding  # the latest finding, which names the fault, its issue, and what to do instead
    device: str
    states: Mapping[str, str]  # `SHOWN`, `CORRECT`, or another status, by version


@dataclass(frozen=True)
class Maker:
    """What made verdicts of a torch version."""

    torch: str  # the version
    python: str  # the version of Python, such as "3.11"
    devices: tuple[str, ...]  # on which cells were judged
    cells: Mapping[str, int]  # how many were judged, by mode; those of a mode that is judged anew are left out
    judge: Judge  # the code that judged
    text: str  # the run and its machine in one line


@dataclass(frozen=True)
class Atlas:
    """Cells and faults through torch versions, and what made the runs."""

    makers: tuple[Maker, ...] = ()
    cells: tuple[History, ...] = ()
    faults: tuple[Fault, ...] = ()

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """All versions, rising.

        Raises:
            UsageError: one is no version.
        """
        found = {maker.torch for maker in self.makers}
        found.update(*(history.states for history in self.cells), *(fault.states for fault in self.faults))
        return tuple(sorted(found, key=_parse_version))


def join(runs: Sequence[Summary], probes: Sequence[ProbeRun], earlier: Atlas) -> Atlas:
    """The atlas of some runs, and of an earlier atlas where they judge nothing.

    Where a run judges an earlier cell again, or a probe runs again, the new result counts.

    Raises:
        UsageError: two runs of one version judge the same cell with the same Python, or differ in one with different
            Pythons; a probe ran twice on one version and device; or a torch has no version.
    """
    cells, faults = _histories(runs, earlier.cells), _faults(probes, earlier.faults)
    new = [_maker(run) for run in runs]
    makers = [*_still_there(earlier, new, runs), *new]
    makers.sort(key=lambda maker: (_parse_version(maker.torch), Version(maker.python)))
    return Atlas(tuple(makers), cells, faults)


def version_of(torch: str) -> str:
    """The version of a torch without its build, such as "2.13.0" of "2.13.0+cpu".

    Raises:
        UsageError: it is no version.
    """
    return _parse_version(torch).public


def _parse_version(torch: str) -> Version:
    try:
        return Version(torch)
    except InvalidVersion:
        raise UsageError(f"torch {torch!r:.60} is no version, so it cannot be compared with others") from None


def _histories(runs: Sequence[Summary], earlier: Sequence[History]) -> tuple[History, ...]:
    """Each cell in all versions, in the earlier order, and then in the order in which the runs plan them."""
    found: dict[Cell, dict[str, State]] = {old.cell: {} for old in earlier}
    judges: dict[tuple[str, str, str], Summary] = {}
    for run in runs:
        version, python = _versions_of(run)
        for planned, verdict in _judged_cells(run):
            state = _state(verdict)
            twin = judges.setdefault((version, python, planned.id), run)
            if twin is not run:
                raise UsageError(f"{twin.folder} and {run.folder} both judge {planned.id} with torch {version}")
            other = found.setdefault(planned.cell, {}).setdefault(version, state)
            if other.kind != state.kind:
                raise UsageError(
                    f"{planned.id} with torch {version} depends on Python: {state.kind} with {python} in {run.folder}, "
                    f"{other.kind} with another"
                )
    for old in earlier:
        found[old.cell] = {**old.states, **found[old.cell]}
    return tuple(History(cell, _rising(states)) for cell, states in found.items())


def _versions_of(run: Summary) -> tuple[str, str]:
    """The version of a run's torch, and that of its Python without its patch, such as "3.11"."""
    known = run.plan.environment
    return version_of(known.torch), ".".join(known.python.split(".")[:2])


def _judged_cells(run: Summary) -> Iterator[tuple[PlannedCell, Verdict]]:
    """The cells of a run whose verdicts say anything of their models, at all their cases."""
    for planned in run.plan.cells:
        verdict = run.verdicts.get(planned.id)
        if verdict and verdict.status not in ("SKIPPED", "NOTRUN") and not planned.left_out:
            yield planned, verdict


def _state(verdict: Verdict) -> State:
    if verdict.status == "PASS":
        return State(WORKS, verdict.status)
    if verdict.red:
        return State(RED, verdict.status, verdict.short, verdict.text)
    kind = OTHER_DTYPE if verdict.status == "EXPECTED" and verdict.short not in STATUSES else DECLARED
    return State(kind, verdict.status, verdict.short, verdict.reason, verdict.link)


def _rising(states: Mapping[str, StateT]) -> dict[str, StateT]:
    return {version: states[version] for version in sorted(states, key=_parse_version)}


def _faults(found: Sequence[ProbeRun], earlier: Sequence[Fault]) -> tuple[Fault, ...]:
    """Each probe on each device in all versions, by name."""
    states: dict[tuple[str, str], dict[str, str]] = {}
    latest: dict[tuple[str, str], ProbeFinding] = {}
    for run in sorted(found, key=lambda run: _parse_version(run.environment.torch)):
        version = version_of(run.environment.torch)
        for finding in run.findings:
            key = (finding.probe, run.device)
            if version in states.setdefault(key, {}):
                raise UsageError(f"probe {finding.probe} was run twice with torch {version} on {run.device}")
            states[key][version] = OF_PROBES.get(finding.status, finding.status)
            latest[key] = finding
    for old in earlier:
        key = (old.probe.probe, old.device)
        states[key] = {**old.states, **states.get(key, {})}
        latest.setdefault(key, old.probe)
    return tuple(Fault(latest[key], key[1], _rising(states[key])) for key in sorted(states))


def _maker(run: Summary) -> Maker:
    torch, python = _versions_of(run)
    cells = [planned.cell for planned, _ in _judged_cells(run)]
    devices = tuple(dict.fromkeys(cell.device for cell in cells))
    counts = dict(Counter(cell.mode for cell in cells))
    return Maker(torch, python, devices, counts, run.plan.judge, _maker_in_words(run, len(cells)))


def _still_there(earlier: Atlas, new: Sequence[Maker], runs: Sequence[Summary]) -> Iterator[Maker]:
    """What made those earlier verdicts that no run gives anew, each with the modes of these."""
    anew = {(m.torch, m.python, p) for m, run in zip(new, runs, strict=True) for p in run.verdicts}
    for maker in earlier.makers:
        own = [h.cell for h in earlier.cells if maker.torch in h.states]
        modes = {cell.mode for cell in own if (maker.torch, maker.python, cell.id) not in anew}
        if modes & maker.cells.keys():
            yield replace(maker, cells={mode: n for mode, n in maker.cells.items() if mode in modes})


def _maker_in_words(run: Summary, judged: int) -> str:
    """What made a run, and how many of its cells are judged."""
    known = run.plan.environment
    planned = len(run.selected) - sum(verdict.status == "SKIPPED" for verdict in run.verdicts.values())
    why = "incomplete" if run.plan.depth == ALL_CASES else f"{run.plan.depth} does not count"
    lacking = "" if judged == planned else f" of {planned}, {why}"
    part = f" · shard {run.plan.shard}" if run.plan.shard else ""
    machine = f"torch {known.torch} · Python {known.python} · {known.cpu} {known.cpu_capability}"
    return f"{machine} · {judged} cells{lacking}{part}"


@dataclass(frozen=True)
class _Span:
    """A state, and the versions that have it."""

    versions: tuple[str, ...]
    state: State


@dataclass(frozen=True)
class _Row:
    """A cell in all versions, as a file has it; what follows from its spans stands there for others to read."""

    cell: Cell
    since: str
    broke: tuple[str, ...]
    mended: tuple[str, ...]
    spans: tuple[_Span, ...]


@dataclass(frozen=True)
class _Document:
    """An atlas, as a file has it."""

    versions: tuple[str, ...]
    makers: tuple[Maker, ...]
    cells: tuple[_Row, ...]
    faults: tuple[Fault, ...]


def document(atlas: Atlas) -> str:
    """The atlas as JSON, one line for each cell and each fault, so that two of them can be compared by line."""
    rows = [_Row(h.cell, h.since, h.broke, h.mended, _spans(h.states)) for h in atlas.cells]
    fields = to_json(_Document(atlas.versions, atlas.makers, tuple(rows), atlas.faults))
    lines = {name: ",\n".join(map(json.dumps, items)) for name, items in fields.items()}
    return "{\n" + ",\n".join(f'"{name}": [\n{items}\n]' for name, items in lines.items()) + "\n}\n"


def _spans(states: Mapping[str, State]) -> tuple[_Span, ...]:
    versions: dict[State, list[str]] = {}
    for version, state in states.items():
        versions.setdefault(state, []).append(version)
    return tuple(_Span(tuple(same), state) for state, same in versions.items())


def read(path: Path) -> Atlas | None:
    """The atlas that a file holds; None if the file holds something else.

    Raises:
        UsageError: the file cannot be read, or it holds a damaged atlas.
    """
    try:
        fields = files.parse(files.read(path))
    except RecordError:
        return None
    if "makers" not in fields:
        return None
    try:
        found: _Document = from_json(_Document, fields)
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}") from None
    cells = (History(row.cell, {v: span.state for span in row.spans for v in span.versions}) for row in found.cells)
    atlas = Atlas(found.makers, tuple(cells), found.faults)
    if atlas.versions != found.versions:
        raise UsageError(f"{path}: it lists the versions {found.versions}, and holds {atlas.versions}")
    return atlas

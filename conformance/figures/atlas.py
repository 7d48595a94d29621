"""What works since which torch version: made of runs and of an earlier atlas, written to a file and read from it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from conformance.errors import RecordError, UsageError
from conformance.figures.history import Fault, History, State, faults, histories, is_judged, minor_of, version_of
from conformance.records.cell import Cell
from conformance.records.convert import from_json, to_json
from conformance.records.plan import ALL_CASES, Judge
from conformance.records.probes import ProbeRun
from conformance.store import files
from conformance.store.summaries import Summary


@dataclass(frozen=True)
class Maker:
    """What made verdicts of a torch version.

    Attributes:
        torch: the version.
        python: the version of Python, such as "3.11".
        devices: the devices on which cells were judged.
        cells: the number of cells that were judged, by mode; those of a mode that is judged anew are left out.
        judge: the code that judged.
        text: the run and its machine in one line.
    """

    torch: str
    python: str
    devices: tuple[str, ...]
    cells: Mapping[str, int]
    judge: Judge
    text: str


@dataclass(frozen=True)
class Atlas:
    """Cells and faults through torch versions.

    Attributes:
        versions: torch versions, rising.
        makers: what made the runs.
        cells: each cell in all versions.
        faults: each probe in all versions.
    """

    versions: tuple[str, ...] = ()
    makers: tuple[Maker, ...] = ()
    cells: tuple[History, ...] = ()
    faults: tuple[Fault, ...] = ()


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


def join(runs: Sequence[Summary], probes: Sequence[ProbeRun], earlier: Atlas) -> Atlas:
    """The atlas of some runs, and of an earlier atlas where they judge nothing.

    Args:
        runs: runs of one or several versions.
        probes: what the probes found, in one or several versions.
        earlier: an atlas; where a run judges one of its cells again, or a probe runs again, the new result counts.

    Raises:
        UsageError: two runs of one version judge the same cell or run the same probe, or a torch has no version.
    """
    cells = histories(runs, earlier.cells)
    found = faults(probes, earlier.faults)
    new = [_maker(run) for run in runs]
    makers = [*_still_there(earlier, new, runs), *new]
    makers.sort(key=lambda maker: (Version(maker.torch), Version(maker.python)))
    return Atlas(_versions(makers, cells, found), tuple(makers), tuple(cells), tuple(found))


def document(atlas: Atlas) -> str:
    """The atlas as JSON, one line for each cell and each fault, so that two of them can be compared by line."""
    rows = [_Row(h.cell, h.since, h.broke, h.mended, _spans(h.states)) for h in atlas.cells]
    fields = to_json(_Document(atlas.versions, atlas.makers, tuple(rows), atlas.faults))
    parts = [f'"{name}": [\n{_lines(items)}\n]' for name, items in fields.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


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
    cells = [History(row.cell, {v: span.state for span in row.spans for v in span.versions}) for row in found.cells]
    return Atlas(_versions(found.makers, cells, found.faults), found.makers, tuple(cells), found.faults)


def _versions(makers: Iterable[Maker], cells: Iterable[History], found: Iterable[Fault]) -> tuple[str, ...]:
    """All versions, rising."""
    of_cells = {version for history in cells for version in history.states}
    of_faults = {version for fault in found for version in fault.states}
    versions = of_cells | of_faults | {maker.torch for maker in makers}
    return tuple(sorted(versions, key=lambda version: Version(version_of(version))))


def _spans(states: Mapping[str, State]) -> tuple[_Span, ...]:
    versions: dict[State, list[str]] = {}
    for version, state in states.items():
        versions.setdefault(state, []).append(version)
    return tuple(_Span(tuple(same), state) for state, same in versions.items())


def _lines(items: Iterable[object]) -> str:
    return ",\n".join(json.dumps(item) for item in items)


def _maker(run: Summary) -> Maker:
    known, judged = run.plan.environment, [p.cell for p in run.plan.own_cells if is_judged(p, run.verdicts.get(p.id))]
    return Maker(
        version_of(known.torch),
        minor_of(known.python),
        tuple(dict.fromkeys(cell.device for cell in judged)),
        dict(Counter(cell.mode for cell in judged)),
        run.plan.judge,
        _maker_in_words(run, len(judged)),
    )


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

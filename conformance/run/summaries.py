"""Reads what runs say of their cells, without what was observed in them: quickly, because several runs are compared.

The sums of a run are checked as everywhere. Of a verdict, what was observed comes last and is nearly all of it; it is
left as bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.errors import RecordError, UsageError
from conformance.records.convert import from_json
from conformance.records.measurements import Result
from conformance.records.observation import Observation
from conformance.records.plan import Plan
from conformance.records.verdicts import Verdict
from conformance.run import documents, lines, regular_file, sealed, store

OBSERVATION = b',"observation":'  # a quote inside a text is escaped, so this is no part of one
TWO_ENDS = b"}}"


@dataclass(frozen=True)
class Summary:
    """A run without what was observed.

    Attributes:
        folder: the run folder.
        plan: its plan.
        verdicts: the verdicts by cell id, without their observations; those of cells that were not judged are left out.
        planned: ids of the cells that were to be judged.
        observations: the JSON text of each observation, by cell id.
        results: the JSON text of each measurement, by the name of its job.
    """

    folder: Path
    plan: Plan
    verdicts: Mapping[str, Verdict]
    planned: tuple[str, ...]
    observations: Mapping[str, bytes]
    results: Mapping[str, bytes]

    @cached_property
    def planned_set(self) -> frozenset[str]:
        """The cells that were to be judged, to look one up."""
        return frozenset(self.planned)

    def dtypes(self, cell: str) -> dict[tuple[str, str], str]:
        """The dtype of each tensor that was compared in a cell, by case and tensor.

        Raises:
            UsageError: what was observed in the cell is no observation.
        """
        text = self.observations.get(cell, b"").removesuffix(TWO_ENDS)
        if not text:
            return {}
        try:
            seen: Observation = from_json(Observation, sealed.parse_record(text))
        except RecordError as problem:
            raise UsageError(f"{self.folder / store.LINES}: {cell}: {problem}") from None
        found = {(d.case, d.tensor): d.dtype for d in seen.discrepancies if d.kind != "conduct"}
        for case, by_dtype in (seen.rest.dtypes if seen.rest else {}).items():
            found |= {(case, tensor): dtype for dtype, tensors in by_dtype.items() for tensor in tensors}
        return found

    def contents(self) -> store.Contents:
        """The run with its measurements decoded, but without what was observed.

        Raises:
            UsageError: a measurement is none.
        """
        try:
            results = {
                job: from_json(Result, sealed.parse_record(text)["result"]) for job, text in self.results.items()
            }
        except RecordError as problem:
            raise UsageError(f"{self.folder / store.LINES}: {problem}") from None
        return store.Contents(self.plan, self.planned, self.verdicts, results)


def read(folder: Path) -> Summary:
    """The summary of a run.

    Raises:
        UsageError: it is no run folder, or it is damaged; the message names the folder.
    """
    plan_bytes, plan = documents.read_plan(folder / store.PLAN)
    done = documents.read_sums(folder / store.DONE)
    try:
        data = regular_file.read(folder / store.LINES, lines.LARGEST)
    except FileNotFoundError:
        data = b""
    known = _Lines(plan, zlib.crc32(plan_bytes))
    for number, line in enumerate(data.splitlines(keepends=True)[: data.count(b"\n")], 1):
        try:
            known.take(line)
        except RecordError as problem:
            raise UsageError(f"{folder / store.LINES}, line {number}: {problem}") from None
    if done is not None:
        store.compare(folder, done, documents.Sums.of(len(known.selected), data[: done.length], plan_bytes))
    return Summary(folder, plan, known.verdicts, known.selected, known.observations, known.results)


class _Lines:
    """Takes the lines of a run one after the other."""

    def __init__(self, plan: Plan, start: int) -> None:
        self.selected = tuple(planned.id for planned in plan.own_cells)
        self.verdicts: dict[str, Verdict] = {}
        self.observations: dict[str, bytes] = {}
        self.results: dict[str, bytes] = {}
        self._planned = set(self.selected)
        self._chain = start

    def take(self, line: bytes) -> None:
        """Check and keep a line.

        Raises:
            RecordError: its sum does not match, it is no record, or it names a cell that the plan does not have.
        """
        if len(line) > lines.LONGEST_LINE:
            raise RecordError(f"it has {len(line)} bytes; at most {lines.LONGEST_LINE} are read")
        text, self._chain = sealed.checked(line, self._chain)
        if text.startswith(b'{"job":'):
            job = from_json(str, sealed.parse_record(text).get("job"))
            self.results[job] = text
        elif text.startswith(b'{"selected":'):
            self.selected = tuple(map(self._checked, from_json(tuple[str, ...], sealed.parse_record(text)["selected"])))
        elif text.startswith(b'{"verdict":'):
            head, found, rest = text.partition(OBSERVATION)
            record = sealed.parse_record(head + TWO_ENDS if found else text)
            verdict: Verdict = from_json(Verdict, record.get("verdict"))
            self.verdicts[self._checked(verdict.cell)] = verdict
            self.observations[verdict.cell] = rest
        else:
            raise RecordError("unknown record")

    def _checked(self, cell: str) -> str:
        if cell not in self._planned:
            raise RecordError(f"the plan has no cell {ascii(cell)[:80]}")
        return cell

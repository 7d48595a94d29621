"""Reads what runs say of their cells, without what was observed in them: quickly, because several runs are compared.

The sums of a run are checked as everywhere. Of a verdict, what was observed comes last and is nearly all of it; it is
left as bytes.
"""

from __future__ import annotations

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
from conformance.store import records_file, run_files

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
            seen: Observation = from_json(Observation, records_file.parse(text))
        except RecordError as problem:
            raise UsageError(f"{self.folder / run_files.LINES}: {cell}: {problem}") from None
        found = {(d.case, str(d.tensor)): d.dtype for d in seen.discrepancies if d.kind != "conduct"}
        for case, by_dtype in (seen.rest.dtypes if seen.rest else {}).items():
            found |= {(case, tensor): dtype for dtype, tensors in by_dtype.items() for tensor in tensors}
        return found

    def contents(self) -> run_files.Contents:
        """The run with its measurements decoded, but without what was observed.

        Raises:
            UsageError: a measurement is none.
        """
        try:
            results = {job: from_json(Result, records_file.parse(text)["result"]) for job, text in self.results.items()}
        except RecordError as problem:
            raise UsageError(f"{self.folder / run_files.LINES}: {problem}") from None
        return run_files.Contents(self.plan, self.planned, self.verdicts, results)


def read(folder: Path) -> Summary:
    """The summary of a run.

    Raises:
        UsageError: it is no run folder, or it is damaged; the message names the folder.
    """
    files = run_files.read_files(folder)
    plan = files.decoded_plan()
    known = _Lines(plan)
    files.give_lines(known.take)
    files.are_complete()  # refuses what is damaged
    return Summary(folder, plan, known.verdicts, known.selected, known.observations, known.results)


class _Lines:
    """Takes the lines of a run one after the other."""

    def __init__(self, plan: Plan) -> None:
        self.selected = tuple(planned.id for planned in plan.own_cells)
        self.verdicts: dict[str, Verdict] = {}
        self.observations: dict[str, bytes] = {}
        self.results: dict[str, bytes] = {}
        self._planned = set(self.selected)

    def take(self, line: bytes) -> None:
        """Check and keep a line.

        Raises:
            RecordError: its sum does not match, it is no record, or it names a cell that the plan does not have.
        """
        text = records_file.text_of(line)
        if text.startswith(b'{"job":'):
            self.results[from_json(str, records_file.parse(text).get("job"))] = text
        elif text.startswith(b'{"selected":'):
            selected = from_json(tuple[str, ...], records_file.parse(text)["selected"])
            self.selected = tuple(run_files.check_planned(cell, self._planned) for cell in selected)
        elif text.startswith(b'{"verdict":'):
            head, found, rest = text.partition(OBSERVATION)
            record = records_file.parse(head + TWO_ENDS if found else text)
            verdict: Verdict = from_json(Verdict, record.get("verdict"))
            self.verdicts[run_files.check_planned(verdict.cell, self._planned)] = verdict
            self.observations[verdict.cell] = rest
        else:
            raise RecordError("unknown record")

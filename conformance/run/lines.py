"""Reads the lines of a run folder: which cells were selected, their verdicts, and the results of measurements."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.errors import RecordError, UsageError
from conformance.records.convert import from_json
from conformance.records.measurements import Result
from conformance.records.plan import Plan
from conformance.records.verdicts import Verdict
from conformance.run import regular_file, sealed
from conformance.run.bounded import RECORD_BYTES, RESULT_BYTES

LARGEST, LONGEST_LINE = 2**30, 64 * 2**20  # bytes of all lines, and of one
KINDS = {"selected": {"selected"}, "job": {"job", "result"}, "verdict": {"verdict"}}  # the fields of each record
LONGEST = {"selected": LONGEST_LINE, "job": RESULT_BYTES, "verdict": RECORD_BYTES}


@dataclass
class Lines:
    """The lines of a run folder as this process last read them.

    Attributes:
        plan: the plan of the run.
        start: the sum of the plan, with which the chain begins.
        chain: the sum of the last whole line.
        data: all bytes of the file.
        whole_bytes, count: length and number of the whole lines.
        selected: ids of the cells chosen from the plan; None: all.
        verdicts, results: by the id of the cell, and by the name of the job.
    """

    plan: Plan
    start: int
    chain: int
    data: bytes = b""
    whole_bytes: int = 0
    count: int = 0
    selected: tuple[str, ...] | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._planned = {planned.id for planned in self.plan.own_cells}

    def continued_by(self, data: bytes, start: int) -> bool:
        """Whether a file with that content begins with these lines."""
        return self.start == start and data.startswith(self.data[: self.whole_bytes])

    def take(self, line: bytes) -> None:
        """Add a line.

        Raises:
            RecordError: its sum does not match, it is none of the known records, or the plan does not have its cell.
        """
        if len(line) > LONGEST_LINE:
            raise RecordError(f"it has {len(line)} bytes; at most {LONGEST_LINE} are read")
        try:
            record, chain = sealed.unchain(line, self.chain)
        except RecordError as problem:
            raise RecordError(f"{problem}{'' if self.count else ', or its plan is another'}") from None
        self._store(record, len(line))
        self.chain = chain
        self.whole_bytes += len(line)
        self.count += 1

    def _store(self, record: dict[str, Any], size: int) -> None:
        kind = next((kind for kind in KINDS if kind in record), None)
        if kind is None or set(record) != KINDS[kind]:
            raise RecordError(f"unknown record with the fields {ascii(sorted(record))[:80]}")
        if size > LONGEST[kind]:
            raise RecordError(f"a {kind} of {size} bytes; at most {LONGEST[kind]} are read")
        if kind == "selected":
            selected = from_json(tuple[str, ...], record["selected"])
            for cell in selected:
                self._check(cell)
            self.selected = tuple(dict.fromkeys(selected))
        elif kind == "job":
            self.results[from_json(str, record["job"])] = from_json(Result, record["result"])
        else:
            verdict: Verdict = from_json(Verdict, record["verdict"])
            self._check(verdict.cell)
            self.verdicts[verdict.cell] = verdict

    def _check(self, cell: str) -> None:
        if cell not in self._planned:
            raise RecordError(f"the plan has no cell {ascii(cell)[:80]}")


_known: dict[Path, Lines] = {}


def read(path: Path, plan: Plan, start: int) -> Lines:
    """The lines of a file. A process decodes each line once, however often it reads the file.

    Args:
        path: path of the file; without a file there are no lines.
        plan: the plan of the run.
        start: the sum of the plan.

    Raises:
        UsageError: the file is damaged, or it is no regular file; the message names the line.
    """
    try:
        data = regular_file.read(path, LARGEST)
    except FileNotFoundError:
        data = b""
    lines = _known.get(path)
    if lines is None or not lines.continued_by(data, start):
        lines = Lines(plan, start, start)
    while (end := data.find(b"\n", lines.whole_bytes) + 1) > 0:
        try:
            lines.take(data[lines.whole_bytes : end])
        except RecordError as problem:
            raise UsageError(f"{path}, line {lines.count + 1}: {problem}") from None
    lines.data = data
    _known[path] = lines
    return lines

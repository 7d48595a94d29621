"""The run folder: `plan.json` first, then one checked line per verdict or measurement, then `run.json` when complete.

Nothing here is ever unpickled. A line reads "crc32 json"; a torn last line is dropped and said so, damage
anywhere else is an error. One writer at a time holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.axes import UsageError
from conformance.records import Cell, Verdict

FORMAT = 2
PLAN, LINES, LOCK, DONE = "plan.json", "cells.jsonl", "run.lock", "run.json"
REFERENCES = "references"  # while the run lasts


@dataclass(frozen=True)
class Contents:
    """What a run folder holds.

    Attributes:
        plan: as planned.
        selected: ids of the cells chosen from the plan.
        verdicts: by cell id, in the order they came.
        answers: of the processes that measured, by the name of their job.
        whole_bytes: length of the lines that are whole.
        torn_bytes: length of an unfinished last line, which is left out.
    """

    plan: dict[str, Any]
    selected: tuple[str, ...]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    whole_bytes: int = 0
    torn_bytes: int = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected cells without a verdict."""
        return tuple(cell for cell in self.selected if cell not in self.verdicts)


def create(folder: Path, plan: dict[str, Any]) -> None:
    """Make a new run folder with its plan."""
    folder.mkdir(parents=True)
    _write(folder / PLAN, plan)


def read(folder: Path) -> Contents:
    """Everything stored.

    Raises:
        UsageError: no run folder, of another format, or damaged; the message names file and line.
    """
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"{folder} is no run folder: it has no {PLAN}") from None
    except ValueError as problem:
        raise UsageError(f"{folder / PLAN} is damaged: {problem}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT or "cells" not in plan:
        raise UsageError(f"{folder / PLAN} is no plan of format {FORMAT}")
    records, whole = _read_lines(folder / LINES)
    selected = tuple(cell_id(cell) for cell in plan["cells"])
    verdicts: dict[str, Verdict] = {}
    answers: dict[str, dict[str, Any]] = {}
    for record in records:
        if "selected" in record:
            selected = tuple(record["selected"])
        elif "job" in record:
            answers[record["job"]] = record["answer"]
        else:
            verdict = Verdict.from_json(record["verdict"])
            verdicts[verdict.cell] = verdict
    torn = (folder / LINES).stat().st_size - whole if (folder / LINES).exists() else 0
    return Contents(plan, selected, verdicts, answers, whole, torn)


def cell_id(planned: dict[str, Any]) -> str:
    """The id of a planned cell."""
    return Cell.of(planned).id


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    if not path.exists():
        return [], 0
    data = path.read_bytes()
    records: list[dict[str, Any]] = []
    whole = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != _checksum(text):
            if whole + len(line) < len(data) or line.endswith(b"\n"):
                raise UsageError(f"{path}, line {number}: its checksum does not match; the run is damaged")
            break
        records.append(json.loads(text))
        whole += len(line)
    return records, whole


def _checksum(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()


class Writer:
    """Adds to a run folder, alone.

    Raises:
        UsageError: another process is writing this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = (folder / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            self._lock.close()
            raise UsageError(f"{folder} is being written by another run (process {owner})") from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self._lines = (folder / LINES).open("ab")
        self._lines.truncate(read(folder).whole_bytes)

    def select(self, cells: list[str]) -> None:
        """Note which cells of the plan this run is about."""
        self._append({"selected": cells})

    def add(self, verdict: dict[str, Any]) -> None:
        """Store one verdict; it survives whatever comes next."""
        self._append({"verdict": verdict})

    def add_answer(self, job: str, answer: dict[str, Any]) -> None:
        """Store what a process measured."""
        self._append({"job": job, "answer": answer})

    def finish(self, summary: dict[str, Any]) -> None:
        """Declare the run complete."""
        _write(self._folder / DONE, summary)

    def close(self) -> None:
        """Let others write."""
        self._lines.close()
        self._lock.close()

    def _append(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        self._lines.write(_checksum(text) + b" " + text + b"\n")
        self._lines.flush()
        os.fsync(self._lines.fileno())


def _write(path: Path, tree: Any) -> None:
    """Write a JSON file whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(tree, ensure_ascii=False, indent=1), encoding="utf-8")
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)

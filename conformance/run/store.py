"""Stores a run: `plan.json` first, then one checked line per verdict or measurement, then `run.json` when complete.

Nothing here is ever unpickled. A line reads "crc32 json". A torn last line is dropped and reported; damage anywhere
else is an error. One writer at a time holds the lock.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from conformance.errors import RecordError, UsageError
from conformance.records.cell import Cell
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import Plan
from conformance.records.sentinels import why_void
from conformance.records.verdicts import Verdict

FORMAT = 3
PLAN, LINES, LOCK, OWNER, DONE = "plan.json", "cells.jsonl", "run.lock", "run.owner", "run.json"
REFERENCES = "references"  # a folder that exists only during the run
STARTED = "started"  # a folder with the starts of cells that never ended; see `run.attempts`

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Contents:
    """What a run folder holds.

    Attributes:
        plan: the plan of the run.
        selected: ids of the cells chosen from the plan.
        verdicts: verdicts by cell id, in the order in which they were stored.
        results: results of the measuring processes, by the name of the job.
        sentinels: verdicts on planted cells, by each process that judged cells; see `records.sentinels`.
        torn_bytes: length of an unfinished last line, which is left out.
    """

    plan: Plan
    selected: tuple[str, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    torn_bytes: int = 0
    sentinels: tuple[Verdict, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected cells without a verdict."""
        return tuple(cell for cell in self.selected if cell not in self.verdicts)

    @property
    def void(self) -> str:
        """Why none of the verdicts counts, on one line; "" if they do, or if no cell has been judged."""
        judged = any(verdict.status != "SKIPPED" for verdict in self.verdicts.values())
        return why_void(self.plan.sentinels, self.sentinels) if judged or self.sentinels else ""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that are not skipped and have a verdict, in the order of the plan."""
        return tuple(p.cell for p in self.plan.cells if not p.skip and p.id in self.verdicts)

    def result(self, kind: type[Measured], job: str) -> Measured | Reason | None:
        """The result of a job of that type, or the reason why it has none; None if the job is not done."""
        found = self.results.get(job)
        return found if isinstance(found, (kind, Reason)) else None


@dataclass
class _Lines:
    """The lines of a run folder as this process last read them."""

    whole_bytes: int = 0
    checksum: int = 0
    selected: tuple[str, ...] | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    sentinels: list[Verdict] = field(default_factory=list)


_plans: dict[Path, tuple[bytes, Plan]] = {}
_lines: dict[Path, _Lines] = {}


def create(folder: Path, plan: Plan) -> None:
    """Make a new run folder with its plan.

    Raises:
        FileExistsError: the folder exists.
    """
    folder.mkdir(parents=True)
    _write(folder / PLAN, {"format": FORMAT, "plan": to_json(plan)})


def read(folder: Path) -> Contents:
    """Everything that is stored. A process decodes each line once, however often it reads the folder.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged; the message names file and line.
    """
    plan = _read_plan(folder / PLAN)
    lines, torn = _read_lines(folder / LINES)
    selected = tuple(cell.id for cell in plan.cells) if lines.selected is None else lines.selected
    return Contents(plan, selected, dict(lines.verdicts), dict(lines.results), torn, tuple(lines.sentinels))


def _read_plan(path: Path) -> Plan:
    try:
        text = path.read_bytes()
    except OSError:
        raise UsageError(f"{path.parent} is no run folder: it has no {path.name}") from None
    known = _plans.get(path)
    if known is not None and known[0] == text:
        return known[1]
    try:
        data = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"{path} is damaged: {problem}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or "plan" not in data:
        raise UsageError(f"{path} is no plan of format {FORMAT}")
    try:
        plan: Plan = from_json(Plan, data["plan"])
    except RecordError as problem:
        raise UsageError(f"{path} is damaged: {problem}") from None
    _plans[path] = (text, plan)
    return plan


def _read_lines(path: Path) -> tuple[_Lines, int]:
    """The lines, and the length of a torn last one."""
    data = path.read_bytes() if path.exists() else b""
    lines = _lines.get(path, _Lines())
    if zlib.crc32(data[: lines.whole_bytes]) != lines.checksum or len(data) < lines.whole_bytes:
        lines = _Lines()  # not the file that was read before
    number = data.count(b"\n", 0, lines.whole_bytes)
    for line in data[lines.whole_bytes :].splitlines(keepends=True):
        number += 1
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != _checksum(text):
            if lines.whole_bytes + len(line) < len(data) or line.endswith(b"\n"):
                raise UsageError(f"{path}, line {number}: its checksum does not match; the run is damaged")
            break
        try:
            _take(lines, json.loads(text))
        except (KeyError, TypeError, ValueError) as problem:
            raise UsageError(f"{path}, line {number}: {problem}") from None
        lines.whole_bytes += len(line)
        lines.checksum = zlib.crc32(line, lines.checksum)
    _lines[path] = lines
    return lines, len(data) - lines.whole_bytes


def _take(lines: _Lines, record: dict[str, Any]) -> None:
    if "selected" in record:
        lines.selected = tuple(record["selected"])
    elif "sentinel" in record:
        lines.sentinels.append(from_json(Verdict, record["sentinel"]))
    elif "job" in record:
        lines.results[record["job"]] = from_json(Result, record["result"])
    else:
        verdict: Verdict = from_json(Verdict, record["verdict"])
        lines.verdicts[verdict.cell] = verdict


def _checksum(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()


class Writer:
    """Appends to a run folder. It holds the folder's lock until `close`.

    Raises:
        UsageError: another process is writing this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            owner = (folder / OWNER).read_text() if (folder / OWNER).exists() else "unknown"
            raise UsageError(f"{folder} is being written by another run (process {owner})") from None
        (folder / OWNER).write_text(str(os.getpid()))
        self._lines = (folder / LINES).open("ab")
        self._lines.truncate(self._lines.tell() - read(folder).torn_bytes)

    def select(self, cells: list[str]) -> None:
        """Store the ids of the cells that were chosen from the plan."""
        self._append({"selected": cells})

    def add(self, verdict: Any) -> None:
        """Store the JSON form of one verdict. It is on the disk when this returns."""
        self._append({"verdict": verdict})

    def add_sentinel(self, verdict: Any) -> None:
        """Store the JSON form of the verdict on one planted cell. It is on the disk when this returns."""
        self._append({"sentinel": verdict})

    def add_result(self, job: str, result: Result) -> None:
        """Store the result of a job. It is on the disk when this returns."""
        self._append({"job": job, "result": to_json(result, Result)})

    def finish(self, cells: int, seconds: float) -> None:
        """Mark the run as complete, with its number of cells and its seconds."""
        _write(self._folder / DONE, {"cells": cells, "seconds": seconds})

    def close(self) -> None:
        """Release the lock, so that other processes can write."""
        contents = read(self._folder)
        if not contents.missing:
            self.finish(len(contents.selected), 0.0)
        self._lines.close()
        self._lock.release()

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

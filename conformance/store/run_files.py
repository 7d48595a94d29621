"""Stores a run: `plan.json` first, then a line per verdict or measurement, then `run.json` when it is complete.

Nothing here is ever unpickled. Each file and each line has a sum of its own, see `store.records_file`, and `run.json`
has one of the other files. A torn last line is dropped and reported, unless the run is complete; damage anywhere else
is an error. One writer at a time holds the lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from conformance.errors import RecordError, StoreError, UsageError
from conformance.records.cell import Cell
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import Plan
from conformance.records.verdicts import Verdict
from conformance.store import records_file, regular_file
from conformance.store.bounded import bound, bound_result, condense

PLAN, LINES, LOCK, OWNER, DONE = "plan.json", "cells.jsonl", "run.lock", "run.owner", "run.json"
REFERENCES = "references"  # a folder that exists only during the run
LARGEST = 2**30  # bytes of all lines

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Contents:
    """What a run folder holds.

    Attributes:
        plan: the plan of the run.
        selected: ids of the cells chosen from the plan.
        verdicts: verdicts by cell id, in the order in which they were stored.
        results: results of the measuring processes, by the name of the job.
        torn_bytes: length of an unfinished last line, which is left out.
        complete: whether `run.json` says that the run is complete.
    """

    plan: Plan
    selected: tuple[str, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    torn_bytes: int = 0
    complete: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected cells without a verdict."""
        return tuple(cell for cell in self.selected if cell not in self.verdicts)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that are not skipped and have a verdict, in the order of the plan."""
        return tuple(p.cell for p in self.plan.cells if not p.skip and p.id in self.verdicts)

    def result(self, kind: type[Measured], job: str) -> Measured | Reason | None:
        """The result of a job of that type, or the reason why it has none; None if the job is not done."""
        found = self.results.get(job)
        return found if isinstance(found, (kind, Reason)) else None


@dataclass(frozen=True)
class Files:
    """The files of a run as they were read.

    Attributes:
        folder: the run folder.
        plan, lines, done: the content of `plan.json`, `cells.jsonl` and `run.json`; empty if there is no such file.
    """

    folder: Path
    plan: bytes
    lines: bytes
    done: bytes

    @property
    def sums(self) -> dict[str, Any]:
        """What `run.json` must say of the others: number and bytes of the lines, and one sum of plan and lines."""
        total = hashlib.sha256(self.plan + self.lines).hexdigest()
        return {"lines": self.lines.count(b"\n"), "bytes": len(self.lines), "sha256": total}

    def decoded_plan(self) -> Plan:
        """The plan.

        Raises:
            UsageError: it has another format, or is damaged; the message names the file.
        """
        plan: Plan = records_file.decode(self.folder / PLAN, self.plan, "plan", Plan)
        try:
            plan.check()
        except RecordError as problem:
            raise UsageError(f"{self.folder / PLAN}: {problem}") from None
        return plan

    def give_lines(self, take: Callable[[bytes], None]) -> None:
        """Give each whole line to a function that raises a `RecordError` for one that is none.

        Raises:
            UsageError: it raised one; the message names file and line.
        """
        for number, line in enumerate(self.lines.split(b"\n")[:-1], 1):
            try:
                take(line + b"\n")
            except RecordError as problem:
                raise UsageError(f"{self.folder / LINES}, line {number}: {problem}") from None

    def are_complete(self) -> bool:
        """Whether the run is complete.

        Raises:
            UsageError: `run.json` is damaged, or counts other files than these; the message names it.
        """
        path = self.folder / DONE
        if not self.done:
            return False
        told = records_file.decode(path, self.done, "sums", dict)
        if told == self.sums:
            return True
        if _content(path, records_file.LARGEST) != self.done:  # another process adds to the run
            return False
        raise UsageError(f"{path} counts another {PLAN} or {LINES}: {told!r:.150}, not {self.sums}; the run is damaged")


def read_files(folder: Path) -> Files:
    """The files of a run, not yet checked.

    Raises:
        UsageError: the folder is no run folder, or one of them is no regular file, too large, or cannot be read.
    """
    done = _content(folder / DONE, records_file.LARGEST)  # before the lines, which another process may be adding to
    plan = _content(folder / PLAN, records_file.LARGEST)
    if not plan:
        raise UsageError(f"{folder} is no run folder: it has no {PLAN}")
    return Files(folder, plan, _content(folder / LINES, LARGEST), done)


def _content(path: Path, largest: int) -> bytes:
    try:
        return regular_file.read(path, largest)
    except FileNotFoundError:
        return b""


class _Lines:
    """What the lines of a run say."""

    def __init__(self, plan: Plan) -> None:
        self.selected = tuple(planned.id for planned in plan.own_cells)
        self.verdicts: dict[str, Verdict] = {}
        self.results: dict[str, Result] = {}
        self._own = set(self.selected)

    def take(self, line: bytes) -> None:
        """Add a line.

        Raises:
            RecordError: its sum does not match, it is none of the known records, or the plan does not have its cell.
        """
        record = records_file.parse(records_file.text_of(line))
        fields = set(record)
        if fields == {"selected"}:
            selected = dict.fromkeys(from_json(tuple[str, ...], record["selected"]))
            self.selected = tuple(check_planned(cell, self._own) for cell in selected)
        elif fields == {"verdict"}:
            verdict: Verdict = from_json(Verdict, record["verdict"])
            self.verdicts[check_planned(verdict.cell, self._own)] = verdict
        elif fields == {"job", "result"}:
            self.results[from_json(str, record["job"])] = from_json(Result, record["result"])
        else:
            raise RecordError(f"unknown record with the fields {ascii(sorted(record))[:80]}")


def check_planned(cell: str, known: Collection[str]) -> str:
    """The id of a cell, if the plan has it.

    Args:
        cell: the id.
        known: the ids of the plan.

    Raises:
        RecordError: the plan does not have it.
    """
    if cell not in known:
        raise RecordError(f"the plan has no cell {ascii(cell)[:80]}")
    return cell


_known: dict[Path, tuple[Files, Contents]] = {}  # what this process last read of each folder


def create(folder: Path, plan: Plan, lines: bytes = b"") -> None:
    """Make a new run folder with its plan.

    Args:
        folder: the folder.
        plan: the plan.
        lines: what is judged and measured already.

    Raises:
        FileExistsError: the folder exists.
        StoreError: it cannot be written; then no folder is left.
    """
    try:
        folder.mkdir(parents=True)
        regular_file.keep_names(folder.parent)
    except FileExistsError:
        raise
    except OSError as problem:
        raise StoreError(f"{folder} cannot be made: {problem.strerror}") from None
    try:
        records_file.write(folder / PLAN, "plan", plan)
        if lines:
            regular_file.write_whole(folder / LINES, lines)
    except StoreError:
        with contextlib.suppress(StoreError):
            regular_file.remove(folder)
        raise


def read(folder: Path) -> Contents:
    """Everything that is stored. A process decodes it again only if it has changed.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged; the message names file and line.
    """
    files = read_files(folder)
    known = _known.get(folder)
    if known is not None and known[0] == files:
        return known[1]
    plan = files.decoded_plan()
    lines = _Lines(plan)
    files.give_lines(lines.take)
    contents = Contents(
        plan,
        lines.selected,
        lines.verdicts,
        lines.results,
        torn_bytes=len(files.lines) - files.lines.rfind(b"\n") - 1,
        complete=files.are_complete(),
    )
    _known[folder] = files, contents
    return contents


def owner(folder: Path) -> str:
    """The process that writes a run, or that died while it did; "" if it is not known."""
    try:
        text = regular_file.read(folder / OWNER, records_file.LARGEST).decode("ascii", errors="replace")
    except (FileNotFoundError, UsageError):
        return ""
    return text if text.isdecimal() else ""


class Writer:
    """Appends to a run folder. It holds the folder's lock until `close`.

    Raises:
        UsageError: another process is writing this run, or the run is damaged.
        StoreError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: StoreError | None = None
        regular_file.refuse_others(folder / LOCK)
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise UsageError(
                f"{folder} is being written by another run (process {owner(folder) or 'unknown'})"
            ) from None
        except OSError as problem:
            raise StoreError(f"{folder / LOCK} cannot be locked: {problem.strerror}") from None
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        path = self._folder / LINES
        contents = read(self._folder)  # refuses what is damaged
        self._complete, self._every_tensor = contents.complete, contents.plan.every_tensor
        regular_file.write_whole(self._folder / OWNER, str(os.getpid()).encode())
        self._file = regular_file.open_to_append(path)
        try:
            self._bytes = os.fstat(self._file).st_size - contents.torn_bytes
            os.ftruncate(self._file, self._bytes)
            regular_file.keep_names(self._folder)
        except OSError as problem:
            os.close(self._file)
            raise StoreError(f"{path} cannot be written: {problem.strerror}") from None

    def select(self, cells: list[str]) -> None:
        """Store the ids of the cells that were chosen from the plan.

        Raises:
            StoreError: they could not be stored.
        """
        self._append({"selected": cells}, "the selection")

    def add(self, verdict: Any) -> None:
        """Store the JSON form of one verdict. It is on the disk when this returns.

        Unless the plan asks for every tensor, those far from their budgets are summed up; see `store.bounded`.

        Raises:
            StoreError: it could not be stored.
        """
        whole = from_json(Verdict, verdict)
        short = bound(whole if self._every_tensor else condense(whole))
        self._append({"verdict": to_json(short)}, f"the verdict of {short.cell}")

    def add_result(self, job: str, result: Result) -> None:
        """Store the result of a job. It is on the disk when this returns. One that is too long is not stored.

        Raises:
            StoreError: it could not be stored.
        """
        self._append({"job": job, "result": to_json(bound_result(result), Result)}, f"the result of {job}")

    def close(self) -> None:
        """Write `run.json` if the run is complete, and release the lock, so that other processes can write.

        Raises:
            StoreError: `run.json` could not be written.
        """
        try:
            if self._failed is None:
                self._finish()
        finally:
            os.close(self._file)
            with contextlib.suppress(OSError):
                (self._folder / OWNER).unlink()
            self._lock.release()

    def _finish(self) -> None:
        contents = read(self._folder)
        if not (contents.complete or contents.missing) and contents.selected:
            records_file.write(self._folder / DONE, "sums", read_files(self._folder).sums)

    def _append(self, record: dict[str, Any], what: str) -> None:
        """Append a line whole or not at all. After a failure nothing is written: the disk may be full or broken."""
        if self._failed is not None:
            raise self._failed
        line = records_file.line(record)
        if self._bytes + len(line) > LARGEST:
            raise self._failure(what, f"a run has at most {LARGEST} bytes")
        try:
            if self._complete:
                self._begin_again()
            regular_file.write_all(self._file, line)
        except OSError as problem:
            self._cut()
            raise self._failure(what, str(problem.strerror)) from None
        except BaseException:  # the person interrupts it
            self._cut()
            raise
        self._bytes += len(line)

    def _begin_again(self) -> None:
        """Remove `run.json`, which does not count what is added to a complete run."""
        (self._folder / DONE).unlink(missing_ok=True)
        regular_file.keep_names(self._folder)
        self._complete = False

    def _cut(self) -> None:
        """Remove what was written of an unfinished line. If that fails too, the reader drops it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._bytes)

    def _failure(self, what: str, why: str) -> StoreError:
        place = self._folder / LINES
        self._failed = StoreError(f"{what} could not be stored in {place}: {why}; what was stored before stands")
        return self._failed

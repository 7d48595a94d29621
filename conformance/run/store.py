"""Stores a run: `plan.json` first, then one checked line per verdict or measurement, then `run.json` when complete.

Nothing here is ever unpickled. `run.sealed` defines the form of the files and what is noticed. A torn last line is
dropped and reported, unless `run.json` counts it; damage anywhere else is an error. One writer at a time holds the
lock.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Mapping
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
from conformance.run import documents, lines, regular_file, sealed
from conformance.run.bounded import bounded, bounded_result
from conformance.run.condensed import condensed

PLAN, LINES, LOCK, OWNER, DONE = "plan.json", "cells.jsonl", "run.lock", "run.owner", "run.json"
REFERENCES = "references"  # a folder that exists only during the run
LARGEST_OWNER = 2**10  # bytes of the file that names the writer
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


def create(folder: Path, plan: Plan) -> None:
    """Make a new run folder with its plan.

    Raises:
        FileExistsError: the folder exists.
        StoreError: the folder or the plan cannot be written; then no folder is left.
    """
    try:
        folder.mkdir(parents=True)
        regular_file.keep_names(folder.parent)
    except FileExistsError:
        raise
    except OSError as problem:
        raise StoreError(f"{folder} cannot be made: {problem.strerror}") from None
    try:
        documents.write_plan(folder / PLAN, plan)
    except StoreError:
        with contextlib.suppress(StoreError):
            regular_file.remove(folder)
        raise


def read(folder: Path) -> Contents:
    """Everything that is stored. A process decodes each line once, however often it reads the folder.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged; the message names file and line.
    """
    plan_bytes, plan = documents.read_plan(folder / PLAN)
    done = documents.read_sums(folder / DONE)  # before the lines, which another process may be adding to
    found = lines.read(folder / LINES, plan, zlib.crc32(plan_bytes))
    owner(folder)
    regular_file.refuse_others(folder / LOCK)
    selected = tuple(cell.id for cell in plan.own_cells) if found.selected is None else found.selected
    contents = Contents(
        plan,
        selected,
        dict(found.verdicts),
        dict(found.results),
        torn_bytes=len(found.data) - found.whole_bytes,
        complete=done is not None,
    )
    if done is not None:
        compare(folder, done, documents.Sums.of(len(selected), found.data[: done.length], plan_bytes))
    return contents


def compare(folder: Path, told: documents.Sums, found: documents.Sums) -> None:
    """Refuse a complete run whose files are not those that were stored.

    Args:
        folder: the run folder.
        told: the sums that it stores.
        found: the sums of its files.

    Raises:
        UsageError: they differ; the message names the file.
    """
    if told.plan_sha256 != found.plan_sha256:
        raise UsageError(f"{folder / PLAN} is not the plan that {DONE} counts; the run is damaged")
    if told != found:
        asked, got = (f"{sums.lines} lines, {sums.length} bytes and {sums.cells} cells" for sums in (told, found))
        raise UsageError(f"{folder / LINES} is not what {DONE} counts, {asked}, but {got}; the run is damaged")


def owner(folder: Path) -> str:
    """The process that writes a run, or that died while it did; "" if there is none.

    Raises:
        UsageError: the file that names it is damaged.
    """
    path = folder / OWNER
    try:
        record, _ = sealed.unchain(regular_file.read(path, LARGEST_OWNER), 0)
        return from_json(str, record.get("process"))  # type: ignore[no-any-return]
    except FileNotFoundError:
        return ""
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}; it only names the process that wrote, and may be deleted") from None


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
        plan_bytes, plan = documents.read_plan(self._folder / PLAN)
        read(self._folder)  # refuses what is damaged
        found = lines.read(path, plan, zlib.crc32(plan_bytes))
        self._chain, self._bytes, self._every_tensor = found.chain, found.whole_bytes, plan.every_tensor
        regular_file.write_whole(self._folder / OWNER, sealed.line({"process": str(os.getpid())}, 0)[0])
        self._file = regular_file.open_to_append(path)
        try:
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

        Unless the plan asks for every tensor, those far from their budgets are summed up; see `run.condensed`.

        Raises:
            StoreError: it could not be stored.
        """
        whole = from_json(Verdict, verdict)
        short = bounded(whole if self._every_tensor else condensed(whole))
        self._append({"verdict": to_json(short)}, f"the verdict of {short.cell}")

    def add_result(self, job: str, result: Result) -> None:
        """Store the result of a job. It is on the disk when this returns. One that is too long is not stored.

        Raises:
            StoreError: it could not be stored.
        """
        self._append({"job": job, "result": to_json(bounded_result(result), Result)}, f"the result of {job}")

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
        if contents.missing or not contents.selected:
            return
        data, plan_bytes = (regular_file.read(self._folder / name, lines.LARGEST) for name in (LINES, PLAN))
        sums = documents.Sums.of(len(contents.selected), data, plan_bytes)
        documents.write_sums(self._folder / DONE, sums)

    def _append(self, record: dict[str, Any], what: str) -> None:
        """Append a line whole or not at all. After a failure nothing is written: the disk may be full or broken."""
        if self._failed is not None:
            raise self._failed
        line, chain = sealed.line(record, self._chain)
        if self._bytes + len(line) > lines.LARGEST:
            raise self._failure(what, f"a run has at most {lines.LARGEST} bytes")
        try:
            regular_file.write_all(self._file, line)
        except OSError as problem:
            self._cut()
            raise self._failure(what, str(problem.strerror)) from None
        except BaseException:  # the person interrupts it
            self._cut()
            raise
        self._chain, self._bytes = chain, self._bytes + len(line)

    def _cut(self) -> None:
        """Remove what was written of an unfinished line. If that fails too, the reader drops it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._bytes)

    def _failure(self, what: str, why: str) -> StoreError:
        place = self._folder / LINES
        self._failed = StoreError(f"{what} could not be stored in {place}: {why}; what was stored before stands")
        return self._failed

"""Stores a run: `plan.json` first, then a line per verdict or measurement, then `run.json` when it is complete.

Nothing here is ever unpickled. Each file and each line has a sum of its own, see `store.files`, and `run.json` has one
of the other files. A torn last line is dropped and reported, unless the run is complete; damage anywhere else is an
error. One writer at a time holds the lock. What is stored of a cell is bounded: all that matters of a tensor stays, and
of the others their margins and dtypes.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from conformance.errors import RecordError, StoreError, UsageError
from conformance.records.cell import RAISES, Cell, Discrepancy, Observation, Rest, Verdict
from conformance.records.convert import from_json, to_json
from conformance.records.measurements import Reason, Result
from conformance.records.plan import Plan
from conformance.store import files
from conformance.verdict import NO_MARGIN, failed_gate

NEAREST = 8  # tensors that are stored whole although nothing is to be said of them
RECORD_BYTES = 200_000  # the longest verdict of a cell, as a line
RESULT_BYTES = 8 * 2**20  # the longest result of a measurement, as a line: a bench keeps the time of every call
FRAME_BYTES = 1_000  # of a line beside its verdict, and of the note that it was shortened


def condense(verdict: Verdict) -> Verdict:
    """The verdict with those tensors alone of which something is to be said, and those nearest to their budgets.

    Args:
        verdict: a verdict whose observation has every tensor.
    """
    seen = verdict.observation
    quiet = sorted((d for d in seen.discrepancies if not _tells(d)), key=_margin, reverse=True)[NEAREST:]
    if not quiet:
        return verdict
    left_out = set(map(id, quiet))
    kept = tuple(d for d in seen.discrepancies if id(d) not in left_out)
    rest = _rest([d for d in seen.discrepancies if id(d) in left_out])
    return replace(verdict, observation=replace(seen, discrepancies=kept, rest=rest))


def _tells(tensor: Discrepancy) -> bool:
    """Whether a gate rejects it or a canary passes, or whether it is no comparison of a tensor."""
    remark = tensor.kind in ("conduct", "absent") or any(measure.gate == RAISES for measure in tensor.measures)
    return remark or not _is_met(tensor)


def _is_met(tensor: Discrepancy) -> bool:
    return failed_gate(tensor) is None and not tensor.accepted and all(measure.met for measure in tensor.measures)


def _margin(tensor: Discrepancy) -> float:
    return max((measure.margin for measure in tensor.measures if measure.gate not in NO_MARGIN), default=0.0)


def _rest(tensors: Sequence[Discrepancy]) -> Rest:
    margins: dict[str, float] = {}
    dtypes: dict[str, dict[str, tuple[str, ...]]] = {}
    for d in tensors:
        for measure in d.measures:
            margins[measure.gate] = max(measure.margin, margins.get(measure.gate, 0.0))
        same = dtypes.setdefault(d.case, {})
        same[d.dtype] = (*same.get(d.dtype, ()), str(d.tensor))
    weak, left = sum(bool(d.weak) for d in tensors), sum(bool(d.left_to) for d in tensors)
    return Rest(len(tensors), margins, dtypes, weak, left)


def bound(verdict: Verdict) -> Verdict:
    """The verdict itself, or one with the same status whose record is short enough; a note says what is left out.

    What a cell says of itself is bounded where it is observed. So only the number of tensors makes a record long: as
    many are kept as there is room for, first those that fail.
    """
    size = _size(verdict)
    if size <= RECORD_BYTES:
        return verdict
    seen = verdict.observation
    bare = replace(seen, discrepancies=(), rest=seen.rest and replace(seen.rest, dtypes={}))
    room = RECORD_BYTES - _size(replace(verdict, observation=bare))
    kept = []
    for discrepancy in sorted(seen.discrepancies, key=_is_met):
        room -= _size(discrepancy) - FRAME_BYTES + 1
        if room < 0:
            break
        kept.append(discrepancy)
    compared = len(seen.discrepancies) + (seen.rest.count if seen.rest else 0)
    note = (
        f"its record of {size} bytes was shortened, at most {RECORD_BYTES} are stored: of {compared} compared tensors, "
        f"{len(kept)} are kept, those that fail first"
    )
    return replace(verdict, notes=(*verdict.notes, note), observation=replace(bare, discrepancies=tuple(kept)))


def _line(verdict: Verdict) -> bytes:
    """The line of a verdict, which is shortened only if it is too long."""
    line = files.record_line({"verdict": to_json(verdict)})
    if len(line) + FRAME_BYTES <= RECORD_BYTES:
        return line
    return files.record_line({"verdict": to_json(bound(verdict))})


def bound_result(result: Result) -> Result:
    """The result itself, or the reason why it is not stored."""
    size = _size(result, Result)
    if size <= RESULT_BYTES:
        return result
    return Reason("record too long", f"{size} bytes; at most {RESULT_BYTES} are stored")


def _size(value: Any, hint: Any = None) -> int:
    """Bytes of the line of a value."""
    return len(json.dumps(to_json(value, hint), separators=(",", ":"))) + FRAME_BYTES


# Writes and reads the files of a run.

PLAN, LINES, LOCK, DONE = "plan.json", "cells.jsonl", "run.lock", "run.json"
REFERENCES = "references"  # a folder that exists only during the run
LARGEST = 2**30  # bytes of all lines
OBSERVATION = b',"observation":'  # a quote inside a text is escaped, so this is no part of one
TWO_ENDS = b"}}"

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Contents:
    """What a run folder holds.

    Attributes:
        plan: the plan of the run.
        selected: ids of the cells chosen from the plan.
        verdicts: verdicts by cell id, in the order in which they were stored.
        results: results of the measuring processes, by the name of the job.
        changed: paths of files that changed while the run went on, so that what depends on them was not judged.
        torn_bytes: length of an unfinished last line, which is left out.
        complete: whether `run.json` says that the run is complete.
    """

    plan: Plan
    selected: tuple[str, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    torn_bytes: int = 0
    complete: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected cells without a verdict."""
        return tuple(cell for cell in self.selected if cell not in self.verdicts)

    @property
    def has_all(self) -> bool:
        """Whether nothing is missing: some cells are selected, unless a shard is empty, and all have their verdicts."""
        return bool(self.selected or self.plan.is_empty_shard) and not self.missing and not self.plan.lacks

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that are not skipped and have a verdict, in the order of the plan."""
        return tuple(p.cell for p in self.plan.cells if not p.skip and p.id in self.verdicts)

    def result(self, kind: type[Measured], job: str) -> Measured | Reason | None:
        """The result of a job of that type, or the reason why it has none; None if the job is not done."""
        result = self.results.get(job)
        return result if isinstance(result, (kind, Reason)) else None


class Files(NamedTuple):
    """The content of `plan.json`, `cells.jsonl` and `run.json`, not yet checked; empty where there is no such file."""

    plan: bytes
    lines: bytes
    done: bytes

    @property
    def digest(self) -> str:
        """What `run.json` must say of the others."""
        return self.digest_of(len(self.lines))

    def digest_of(self, size: int) -> str:
        """The digest of the plan and of so many bytes of the lines."""
        whole = hashlib.sha256(self.plan)
        whole.update(memoryview(self.lines)[:size])
        return whole.hexdigest()


def read_files(folder: Path) -> Files:
    """The files of a run.

    Raises:
        UsageError: the folder is no run folder, or one of them is no regular file, too large, or cannot be read.
    """
    done = _content(folder / DONE)  # before the lines, which another process may be adding to
    plan = _content(folder / PLAN)
    if not plan:
        raise UsageError(f"{folder} is no run folder: it has no {PLAN}")
    return Files(plan, _content(folder / LINES, LARGEST), done)


def _content(path: Path, largest: int = files.LARGEST) -> bytes:
    try:
        return files.read(path, largest)
    except FileNotFoundError:
        return b""


def decode(folder: Path, raw: Files, observations: dict[str, bytes] | None = None) -> Contents:
    """What the files of a run say.

    Args:
        folder: the run folder, for messages.
        raw: its files.
        observations: takes the JSON text of each observation, by cell id, so that the verdicts have none; None: the
            verdicts have them. What was observed comes last in a verdict, and is nearly all of it.

    Raises:
        UsageError: a file has another format, is damaged, or contradicts another; the message names file and line.
    """
    plan = _plan(folder, raw)
    return _Lines(plan, observations).contents(folder, raw)


def read_plan(folder: Path) -> Plan:
    """The plan of a run alone.

    Raises:
        UsageError: the folder is no run folder, or its plan is damaged; the message names the file.
    """
    return _plan(folder, Files(_content(folder / PLAN), b"", b""))


def _plan(folder: Path, raw: Files) -> Plan:
    plan: Plan = files.decode(folder / PLAN, raw.plan, "plan", Plan)
    try:
        plan.check()
    except RecordError as problem:
        raise UsageError(f"{folder / PLAN}: {problem}") from None
    return plan


class _Lines:
    """What the lines of a run say. Lines that are added later are taken alone."""

    def __init__(self, plan: Plan, observations: dict[str, bytes] | None) -> None:
        self.plan, self.bytes, self.count, self.digest = plan, 0, 0, ""
        self.selected = tuple(planned.id for planned in plan.cells)
        self.verdicts: dict[str, Verdict] = {}
        self.results: dict[str, Result] = {}
        self.changed: tuple[str, ...] = ()
        self._own, self._observations = frozenset(self.selected), observations

    def begin(self, raw: Files) -> bool:
        """Whether a run with these files begins with the plan and the lines that were taken."""
        return raw.digest_of(self.bytes) == self.digest

    def contents(self, folder: Path, raw: Files) -> Contents:
        """What a run holds that begins so; see `decode`."""
        whole = raw.lines.rfind(b"\n") + 1
        for line in BytesIO(raw.lines[self.bytes : whole]):
            self.count += 1
            try:
                self._take(files.text_of(line))
            except RecordError as problem:
                raise UsageError(f"{folder / LINES}, line {self.count}: {problem}") from None
        self.bytes, self.digest = whole, raw.digest_of(whole)
        verdicts, torn = dict(self.verdicts), len(raw.lines) - whole
        complete = _is_complete(folder / DONE, raw)
        return Contents(self.plan, self.selected, verdicts, dict(self.results), self.changed, torn, complete)

    def _take(self, text: bytes) -> None:
        """Add the record in a JSON text.

        Raises:
            RecordError: it is none of the known records, or the plan does not have its cell.
        """
        observation = None
        if self._observations is not None and text.startswith(b'{"verdict":') and OBSERVATION in text:
            text, _, observation = text.removesuffix(TWO_ENDS).partition(OBSERVATION)
            text += TWO_ENDS
        record = files.parse(text)
        if record.keys() == {"selected"}:
            selected = dict.fromkeys(from_json(tuple[str, ...], record["selected"]))
            self.selected = tuple(map(self._check_planned, selected))
        elif record.keys() == {"verdict"}:
            verdict: Verdict = from_json(Verdict, record["verdict"])
            self.verdicts[self._check_planned(verdict.cell)] = verdict
            if self._observations is not None:
                self._observations[verdict.cell] = observation or b""
        elif record.keys() == {"changed"}:
            self.changed = from_json(tuple[str, ...], record["changed"])
        elif record.keys() == {"job", "result"}:
            self.results[from_json(str, record["job"])] = from_json(Result, record["result"])
        else:
            raise RecordError(f"unknown record with the fields {ascii(sorted(record))[:80]}")

    def _check_planned(self, cell: str) -> str:
        if cell not in self._own:
            raise RecordError(f"the plan has no cell {ascii(cell)[:80]}")
        return cell


def _is_complete(path: Path, raw: Files) -> bool:
    """Whether `run.json` is there; it is refused if it is damaged, or tells of other files."""
    if not raw.done:
        return False
    if files.decode(path, raw.done, "sha256", str) == raw.digest:
        return True
    if _content(path) != raw.done:  # another process adds to the run
        return False
    raise UsageError(f"{path} has the digest of another {PLAN} or {LINES}; the run is damaged")


_decoded: dict[Path, _Lines] = {}  # what this process last read of each folder


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
        files.keep_names(folder.parent)
    except FileExistsError:
        raise
    except OSError as problem:
        raise StoreError(f"{folder} cannot be made: {problem.strerror}") from None
    try:
        files.write_document(folder / PLAN, "plan", plan)
        if lines:
            files.write_whole(folder / LINES, lines)
    except StoreError:
        with contextlib.suppress(StoreError):
            files.remove(folder)
        raise


def read(folder: Path) -> Contents:
    """Everything that is stored. A process decodes again only what is new.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged; the message names file and line.
    """
    raw, lines = read_files(folder), _decoded.pop(folder, None)
    if lines is None or not lines.begin(raw):
        lines = _Lines(_plan(folder, raw), None)
    contents = lines.contents(folder, raw)
    _decoded[folder] = lines  # not if it was refused
    return contents


class Writer:
    """Appends to a run folder. It holds the folder's lock until `close`.

    Raises:
        UsageError: another process is writing this run, or the run is damaged.
        StoreError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: StoreError | None = None
        files.refuse_irregular(folder / LOCK)  # which the lock would follow
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise UsageError(f"{folder} is being written by another run") from None
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
        self._file = files.open_to_append(path)
        try:
            self._bytes = os.fstat(self._file).st_size - contents.torn_bytes
            os.ftruncate(self._file, self._bytes)
            files.keep_names(self._folder)
        except OSError as problem:
            os.close(self._file)
            raise StoreError(f"{path} cannot be written: {problem.strerror}") from None

    def select(self, cells: list[str]) -> None:
        """Store the ids of the cells that were chosen from the plan.

        Raises:
            StoreError: they could not be stored.
        """
        self._append(files.record_line({"selected": cells}), what="the selection")

    def note_changed(self, changed: Sequence[str]) -> None:
        """Store the paths of all files that changed while the run went on.

        Raises:
            StoreError: they could not be stored.
        """
        self._append(files.record_line({"changed": list(changed)}), what="what changed")

    def add(self, verdict: Any) -> None:
        """Store the JSON form of one verdict. It is on the disk when this returns.

        Unless the plan asks for every tensor, those far from their budgets are summed up; see `store.run_files`.

        Raises:
            StoreError: it could not be stored.
        """
        whole: Verdict = from_json(Verdict, verdict)
        self._append(_line(whole if self._every_tensor else condense(whole)), what=f"the verdict of {whole.cell}")

    def add_kept(self, verdicts: Iterable[Verdict]) -> None:
        """Store verdicts of earlier runs, all at once, because the disk takes as long for one.

        Raises:
            StoreError: they could not be stored.
        """
        self._append(*map(_line, verdicts), what="the kept verdicts")

    def add_result(self, job: str, result: Result) -> None:
        """Store the result of a job. It is on the disk when this returns. One that is too long is not stored.

        Raises:
            StoreError: it could not be stored.
        """
        record = {"job": job, "result": to_json(bound_result(result), Result)}
        self._append(files.record_line(record), what=f"the result of {job}")

    def close(self) -> None:
        """Write `run.json` if the run is complete, and release the lock, so that other processes can write.

        Raises:
            StoreError: `run.json` could not be written.
        """
        try:
            contents = None if self._failed else read(self._folder)
            if contents is not None and contents.has_all and not contents.complete:
                files.write_document(self._folder / DONE, "sha256", read_files(self._folder).digest)
        finally:
            os.close(self._file)
            self._lock.release()

    def _append(self, *added: bytes, what: str) -> None:
        """Append lines whole or not at all. After a failure nothing is written: the disk may be full or broken."""
        if self._failed is not None:
            raise self._failed
        lines = b"".join(added)
        if self._bytes + len(lines) > LARGEST:
            raise self._failure(what, f"a run has at most {LARGEST} bytes")
        if not os.fstat(self._file).st_nlink:
            self._failed = StoreError(f"{what} could not be stored: somebody has removed {self._folder}")
            raise self._failed
        try:
            if self._complete:  # `run.json` does not count what is added
                (self._folder / DONE).unlink(missing_ok=True)
                files.keep_names(self._folder)
                self._complete = False
            files.write_all(self._file, lines)
        except BaseException as problem:
            with contextlib.suppress(OSError):  # if this fails too, the reader drops the unfinished line
                os.ftruncate(self._file, self._bytes)
            if isinstance(problem, OSError):
                raise self._failure(what, str(problem.strerror)) from None
            raise  # the person interrupts it
        self._bytes += len(lines)

    def _failure(self, what: str, why: str) -> StoreError:
        place = self._folder / LINES
        self._failed = StoreError(f"{what} could not be stored in {place}: {why}; what was stored before stands")
        return self._failed


# Reads what runs say of their cells, without what was observed in them: quickly, because several runs are compared.
# The sums of a run are checked as everywhere. What was observed is left as text.


@dataclass(frozen=True, kw_only=True)
class Summary(Contents):
    """A run whose verdicts have no observations.

    Attributes:
        folder: the run folder.
        observations: the JSON text of each observation, by cell id; empty if it has none.
    """

    folder: Path
    observations: Mapping[str, bytes]

    def dtypes(self, cell: str) -> dict[tuple[str, str], str]:
        """The dtype of each tensor that was compared in a cell, by case and tensor.

        Raises:
            UsageError: what was observed in the cell is no observation.
        """
        text = self.observations.get(cell, b"")
        if not text:
            return {}
        try:
            seen: Observation = from_json(Observation, files.parse(text))
        except RecordError as problem:
            raise UsageError(f"{self.folder / LINES}: {cell}: {problem}") from None
        dtypes = {(d.case, str(d.tensor)): d.dtype for d in seen.discrepancies if d.kind != "conduct"}
        for case, by_dtype in (seen.rest.dtypes if seen.rest else {}).items():
            dtypes |= {(case, tensor): dtype for dtype, tensors in by_dtype.items() for tensor in tensors}
        return dtypes


def read_summary(folder: Path) -> Summary:
    """The summary of a run.

    Raises:
        UsageError: it is no run folder, or it is damaged; the message names the folder.
    """
    observations: dict[str, bytes] = {}
    contents = decode(folder, read_files(folder), observations)
    return Summary(**vars(contents), folder=folder, observations=observations)

"""Reads and writes sealed documents: the plan of a run, the sums of a complete one, and what the probes found."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.errors import RecordError, UsageError
from conformance.records.convert import from_json, to_json
from conformance.records.plan import Plan
from conformance.records.probes import ProbeRun
from conformance.run import regular_file, sealed
from conformance.version import VERSION

FORMAT = 4
LARGEST_PLAN, LARGEST_SUMS = 64 * 2**20, 2**16  # bytes


@dataclass(frozen=True)
class Sums:
    """What `run.json` says of a complete run.

    Attributes:
        cells: number of selected cells; each has a verdict.
        lines, length: number and bytes of the lines that were stored.
        lines_sha256, plan_sha256: their sum, and that of the plan.
    """

    cells: int
    lines: int
    length: int
    lines_sha256: str
    plan_sha256: str

    @classmethod
    def of(cls, cells: int, lines_bytes: bytes, plan_bytes: bytes) -> Sums:
        """The sums of a run with so many cells."""
        plan, stored = (hashlib.sha256(data).hexdigest() for data in (plan_bytes, lines_bytes))
        return cls(cells, lines_bytes.count(b"\n"), len(lines_bytes), stored, plan)


_plans: dict[Path, tuple[bytes, Plan]] = {}


def write_plan(path: Path, plan: Plan) -> None:
    """Write the plan of a run.

    Args:
        path: path of the file.
        plan: the plan.

    Raises:
        StoreError: the file cannot be written.
    """
    _write(path, {"plan": to_json(plan)})


def read_plan(path: Path) -> tuple[bytes, Plan]:
    """The bytes of a run's plan, and the plan. A process decodes it once, however often it reads the file.

    Raises:
        UsageError: there is none, it has another format, or it is damaged; the message names the file.
    """
    try:
        data = regular_file.read(path, LARGEST_PLAN)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path.parent} is no run folder: it has no {path.name}") from None
    known = _plans.get(path)
    if known is not None and known[0] == data:
        return known
    try:
        plan: Plan = from_json(Plan, _unseal(path, data, {"plan"})["plan"])
        plan.check()
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}") from None
    _plans[path] = data, plan
    return data, plan


def write_sums(path: Path, sums: Sums) -> None:
    """Write the sums of a complete run, unless they are written already.

    Raises:
        StoreError: the file cannot be written.
    """
    if sums != read_sums(path):
        _write(path, {"sums": to_json(sums)})


def read_sums(path: Path) -> Sums | None:
    """The sums of a complete run; None if it is not complete.

    Raises:
        UsageError: they have another format, or are damaged; the message names the file.
    """
    try:
        fields = _unseal(path, regular_file.read(path, LARGEST_SUMS), {"sums"})
        return from_json(Sums, fields["sums"])  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}") from None


def write_probes(path: Path, found: ProbeRun) -> None:
    """Write what the probes found.

    Raises:
        StoreError: the file cannot be written.
    """
    _write(path, {"probes": to_json(found)})


def read_probes(path: Path) -> ProbeRun:
    """What the probes found.

    Raises:
        UsageError: the file has another format, or is damaged; the message names it.
    """
    try:
        fields = _unseal(path, regular_file.read(path, LARGEST_PLAN), {"probes"})
        return from_json(ProbeRun, fields["probes"])  # type: ignore[no-any-return]
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}") from None


def _unseal(path: Path, data: bytes, wanted: set[str]) -> dict[str, Any]:
    """The fields of a sealed file of this format."""
    try:
        fields = sealed.unseal(data)
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}{_older(data)}") from None
    found, version = fields.pop("format", None), fields.pop("version", None)
    if type(found) is not int or found != FORMAT:
        wrote = f"; conformance {version} wrote it and can read it" if isinstance(version, str) else ""
        raise UsageError(
            f"{path} has format {found!r:.20}, this is conformance {VERSION} for format {FORMAT}{wrote:.80}"
        )
    if set(fields) != wanted:
        raise UsageError(f"{path}: want the fields {sorted(wanted)}, got {sorted(fields)!r:.80}")
    return fields


def _older(data: bytes) -> str:
    """What to do with a file of a format without sums."""
    said = re.match(rb'\{\s*"format": (\d{1,9}),', data)
    if said is None or not 0 < int(said[1]) < FORMAT:
        return ""
    return f"; it says format {int(said[1])}, which was written before {VERSION}: judge the models again"


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    regular_file.write_whole(path, sealed.seal({"format": FORMAT, "version": VERSION, **fields}))

"""Joins the shards of one plan into one run folder. It copies the lines of verdicts, and executes nothing.

Each shard is first read, so that none is damaged. Then all plans must be the same: a cell is judged by exactly one
shard, or by none, and then the joined run is incomplete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from conformance.errors import StoreError, UsageError
from conformance.one_line import counted, some
from conformance.records.plan import Plan, PlannedCell, in_words
from conformance.store import records_file, regular_file, run_files

PROCESSOR = ("cpu", "cpu_capability")  # hosted machines of one kind differ in these
NOT_COMPARED = ("executable", "cores")  # of the environment: no verdict depends on them
APART = (
    "environment",
    "digests",
    "models",
    "modes",
    "cells",
    "shard",
    "judge",
)  # of the plan: compared by parts
SHORT = ("seed", "deadline", "measure")  # of the plan: short enough to show
MOST_NAMED = 3


@dataclass(frozen=True)
class Part:
    """A shard that was read.

    Attributes:
        folder, plan: its folder and its plan.
        number: which part of the plan it is.
        lines: what it judged and measured.
        judged: ids of the cells that have a verdict.
    """

    folder: Path
    plan: Plan
    number: int
    lines: bytes
    judged: frozenset[str]


def merge(folders: Sequence[Path], into: Path, *, any_cpu: bool) -> list[str]:
    """Write the joined run; returns what is missing of it, one line each.

    Args:
        folders: the run folders of the shards.
        into: the folder to write, which must not exist.
        any_cpu: join shards of machines with different processors.

    Raises:
        UsageError: a shard is damaged or there twice, or the shards are of different plans, environments or
            revisions; the message names the folders and what differs. Nothing is written.
        StoreError: the joined run cannot be written.
    """
    if os.path.lexists(into):
        raise UsageError(f"--into {into}: it exists; a joined run needs a new folder")
    parts = [_read(folder) for folder in folders]
    first = parts[0]
    for other in parts[1:]:
        different = list(_differences(first.plan, other.plan, any_cpu=any_cpu))
        if different:
            raise UsageError(f"{first.folder} and {other.folder} cannot be joined: {'; '.join(different)}")
    by_number: dict[int, Part] = {}
    for part in parts:
        twin = by_number.setdefault(part.number, part)
        if twin is not part:
            raise UsageError(f"shard {part.plan.shard} is there twice: {twin.folder} and {part.folder}")
    ordered = [by_number[number] for number in sorted(by_number)]
    _write(into, ordered)
    return _missing(first.plan, by_number)


def _read(folder: Path) -> Part:
    try:
        contents = run_files.read(folder)
    except UsageError as problem:
        raise UsageError(f"{problem}; the other runs can be joined without {folder}") from None
    plan = contents.plan
    if plan.shard is None:
        raise UsageError(f"{folder} is no shard; merge joins the runs of conformance run --shard I/N")
    kept: list[bytes] = []

    def keep(line: bytes) -> None:
        if not records_file.text_of(line).startswith(b'{"selected":'):
            kept.append(line)

    run_files.read_files(folder).give_lines(keep)
    return Part(folder, plan, plan.shard.index, b"".join(kept), frozenset(contents.verdicts))


def _differences(one: Plan, other: Plan, *, any_cpu: bool) -> Iterator[str]:
    """What differs between the plans of two shards, one phrase each."""
    assert one.shard
    assert other.shard
    if len(one.shard.parts) != len(other.shard.parts):
        yield f"one is a shard of {len(one.shard.parts)}, the other of {len(other.shard.parts)}"
    for field in fields(one.environment):
        was, found = getattr(one.environment, field.name), getattr(other.environment, field.name)
        if was != found and field.name not in NOT_COMPARED and not (any_cpu and field.name in PROCESSOR):
            yield f"{field.name} {in_words(was)} and {in_words(found)}"
    if one.judge.code != other.judge.code:
        yield f"they have different judges, {one.judge} and {other.judge}"
    if one.depth != other.depth:
        yield f"one judges {one.depth}, the other {other.depth}"
    was_planned, is_planned = _relative(one), _relative(other)
    for what, parts in was_planned.items():
        yield from _mapping(what, parts, is_planned[what])
    yield from _mapping("cell", _by_id(one.cells), _by_id(other.cells))
    for name in (field.name for field in fields(one) if field.name not in APART):
        was, found = getattr(one, name), getattr(other, name)
        if was != found:
            yield f"{name} {in_words(was)} and {in_words(found)}" if name in SHORT else f"{name} differ"
    if set(one.models) == set(other.models) and len(one.shard.parts) == len(other.shard.parts):
        yield from ["the models are split in another way"] if one.shard.parts != other.shard.parts else []


def _mapping(what: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """What differs between two mappings, in few words."""
    changed = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    if changed:
        how = "differs" if changed[0] in one and changed[0] in other else "is in one of them alone"
        yield f"{what} {some(changed)} {how}"


def _by_id(cells: Sequence[PlannedCell]) -> dict[str, Any]:
    return {planned.id: planned for planned in cells}


def _relative(plan: Plan) -> dict[str, dict[str, Any]]:
    """Sources, modes and models, with paths from the folder that holds them all, wherever that lies."""
    places = [*plan.modes.values(), *(model.location for model in plan.models.values())]
    files = [*plan.digests, *(path for place in places for path in place.paths)]
    top = os.path.commonpath([str(Path(name).parent) for name in files]) if files else ""

    def short(path: str) -> str:
        return os.path.relpath(path, top) if path else ""

    return {
        "source": {short(path): digest for path, digest in plan.digests.items()},
        "mode": {name: place.moved(short) for name, place in plan.modes.items()},
        "model": {
            name: replace(model, location=model.location.moved(short), written=None)
            for name, model in plan.models.items()
        },
    }


def _write(into: Path, parts: Sequence[Part]) -> None:
    """Write the joined run whole, or not at all."""
    environments = [part.plan.environment for part in parts]
    cpu, capability = (" and ".join(dict.fromkeys(getattr(e, name) for e in environments)) for name in PROCESSOR)
    plan = replace(parts[0].plan, shard=None, environment=replace(environments[0], cpu=cpu, cpu_capability=capability))
    try:
        run_files.create(into, plan, b"".join(part.lines for part in parts))
        run_files.Writer(into).close()  # which says that the run is complete, if it is
    except (OSError, StoreError) as problem:
        with contextlib.suppress(StoreError):
            regular_file.remove(into)
        raise StoreError(f"--into {into}: {problem}") from None


def _missing(plan: Plan, parts: dict[int, Part]) -> list[str]:
    """The shards that are not there, and the cells that a shard did not judge."""
    assert plan.shard
    found = []
    for number, models in enumerate(plan.shard.parts, 1):
        own = [planned.id for planned in plan.cells if planned.cell.model in models]
        if number not in parts:
            found.append(f"shard {number}/{len(plan.shard.parts)} is missing: {_say_missing(own)}")
            continue
        left = [cell for cell in own if cell not in parts[number].judged]
        if left:
            folder = parts[number].folder
            found.append(f"shard {number}/{len(plan.shard.parts)} ({folder}) is incomplete: {_say_missing(left)}")
    return found


def _say_missing(cells: Sequence[str]) -> str:
    return f"{counted(len(cells), 'cell')} without a verdict, {some(cells, MOST_NAMED)}"

"""Splits the models of a plan into shards, and joins the runs of shards into one run.

The split is the same on every machine that plans the same cells. Joining copies lines, and executes nothing: each shard
is first read, so that none is damaged. Then all plans must be the same: a cell is judged by exactly one shard, or by
none, and then the joined run is incomplete.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from conformance.errors import StoreError, UsageError, counted, some
from conformance.records.cell import model_of
from conformance.records.plan import Plan, Shard, in_words
from conformance.store import files, run_files
from conformance.store.durations import ModelSeconds, of_cells, of_run, of_the_zoo

PROCESSOR = ("cpu", "cpu_capability")  # hosted machines of one kind differ in these
NOT_COMPARED = ("executable", "cores")  # of the environment: no verdict depends on them
APART = ("environment", "digests", "models", "modes", "cells", "shard", "judge", "command")  # of the plan
MOST_NAMED = 3


def shard(plan: Plan, index: int, count: int, balance: Path | None) -> Shard:
    """One shard of a plan, with the whole split.

    The longest model goes first, each to the shard that has least so far. A model stays whole, because its cells share
    a reference, which takes longer than most of them. What decides is the plan and the seconds; both are the same
    everywhere, because the seconds are part of this package or of the run that is named.

    Args:
        plan: the whole plan.
        index: which one, from 1.
        count: number of shards.
        balance: the folder of a run whose seconds decide; None for those that were measured of the zoo.

    Raises:
        UsageError: there are more shards than models, or that run cannot be read or has no seconds.
    """
    if count > len(plan.models):
        raise UsageError(f"--shard {index}/{count}: {len(plan.models)} models make at most as many shards")
    weights = _weights(plan, of_the_zoo() if balance is None else _of_run(balance))
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for model in sorted(weights, key=lambda name: (-weights[name], hashlib.blake2b(name.encode()).digest())):
        lightest = loads.index(min(loads))
        parts[lightest].append(model)
        loads[lightest] += weights[model]
    return Shard(index, tuple(tuple(part) for part in parts))


def _weights(plan: Plan, known: Mapping[str, ModelSeconds]) -> dict[str, float]:
    """What each model will take."""
    found = dict.fromkeys(plan.models, 0.0)
    for cell, seconds in of_cells(plan, plan.cells, known).items():
        found[model_of(cell)] += seconds
    return found


def _of_run(folder: Path) -> dict[str, ModelSeconds]:
    seconds = of_run(run_files.read(folder))
    if not seconds:
        raise UsageError(f"--balance {folder}: no cell of it was judged")
    return seconds


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
    first, *others = parts = [_read(folder) for folder in folders]
    for other in others:
        different = list(_differences(first.plan, other.plan, any_cpu=any_cpu))
        if different:
            raise UsageError(f"{first.folder} and {other.folder} cannot be joined: {'; '.join(different)}")
    by_number: dict[int, Part] = {}
    for part in parts:
        twin = by_number.setdefault(part.number, part)
        if twin is not part:
            raise UsageError(f"shard {part.plan.shard} is there twice: {twin.folder} and {part.folder}")
    _write(into, [by_number[number] for number in sorted(by_number)])
    return list(_missing(first.plan, by_number))


def _read(folder: Path) -> Part:
    try:
        contents, raw = run_files.read(folder), run_files.read_files(folder)
    except UsageError as problem:
        raise UsageError(f"{problem}; the other runs can be joined without {folder}") from None
    plan = contents.plan
    if plan.shard is None:
        raise UsageError(f"{folder} is no shard; merge joins the runs of conformance run --shard I/N")
    lines = [line for line in raw.lines.splitlines(keepends=True) if line.endswith(b"\n")]
    kept = b"".join(line for line in lines if not files.text_of(line).startswith(b'{"selected":'))
    return Part(folder, plan, plan.shard.index, kept, frozenset(contents.verdicts))


def _differences(one: Plan, other: Plan, *, any_cpu: bool) -> Iterator[str]:
    """What differs between the plans of two shards, one phrase each."""
    left_out = NOT_COMPARED + PROCESSOR * any_cpu
    was, now = _settings(one), _settings(other)
    for name in (name for name in was if name not in left_out and was[name] != now[name]):
        yield f"{name} {in_words(was[name])} and {in_words(now[name])}"
    if one.judge.code != other.judge.code:
        yield f"they have different judges, {one.judge} and {other.judge}"
    whole, twin = _sources_and_cells(one), _sources_and_cells(other)
    changed = [name for name in {**whole, **twin} if whole.get(name) != twin.get(name)]
    if changed:
        in_both = changed[0] in whole and changed[0] in twin
        yield f"{some(changed)} {'differs' if in_both else 'is in one of them alone'}"
    for name in (field.name for field in fields(one) if field.name not in (*APART, *was)):
        if getattr(one, name) != getattr(other, name):
            yield f"{name} differ"
    if one.models == other.models and one.shard and other.shard and one.shard.parts != other.shard.parts:
        yield "the models are split in another way"


def _settings(plan: Plan) -> dict[str, Any]:
    """What is short enough to show, by name."""
    environment = {field.name: getattr(plan.environment, field.name) for field in fields(plan.environment)}
    return {**environment, **{name: getattr(plan, name) for name in ("seed", "deadline", "measure", "depth")}}


def _sources_and_cells(plan: Plan) -> dict[str, Any]:
    """Digests and places of the sources, by paths from the folder that holds them all, and the cells."""
    places = [*plan.modes.values(), *(model.location for model in plan.models.values())]
    sources = [*plan.digests, *(path for place in places for path in place.paths)]
    top = os.path.commonpath([str(Path(name).parent) for name in sources]) if sources else ""

    def short(path: str) -> str:
        return os.path.relpath(path, top) if path else ""

    return {
        **{f"cell {planned.id}": planned for planned in plan.cells},
        **{f"source {short(path)}": digest for path, digest in plan.digests.items()},
        **{f"mode {name}": place.moved(short) for name, place in plan.modes.items()},
        **{
            f"model {name}": replace(model, location=model.location.moved(short), written=None)
            for name, model in plan.models.items()
        },
    }


def _write(into: Path, parts: Sequence[Part]) -> None:
    """Write the joined run whole, or not at all."""
    environments = [part.plan.environment for part in parts]
    cpu, capability = (" and ".join(dict.fromkeys(getattr(e, name) for e in environments)) for name in PROCESSOR)
    plan = replace(
        parts[0].plan, shard=None, command=(), environment=replace(environments[0], cpu=cpu, cpu_capability=capability)
    )
    try:
        run_files.create(into, plan, b"".join(part.lines for part in parts))
        run_files.Writer(into).close()  # which says that the run is complete, if it is
    except (OSError, StoreError) as problem:
        with contextlib.suppress(StoreError):
            files.remove(into)
        raise StoreError(f"--into {into}: {problem}") from None


def _missing(plan: Plan, parts: Mapping[int, Part]) -> Iterator[str]:
    """The shards that are not there, and the cells that a shard did not judge."""
    assert plan.shard
    for number, models in enumerate(plan.shard.parts, 1):
        judged = parts[number].judged if number in parts else frozenset()
        left = [p.id for p in plan.cells if p.cell.model in models and p.id not in judged]
        if left:
            how = f"({parts[number].folder}) is incomplete" if number in parts else "is missing"
            cells = f"{counted(len(left), 'cell')} without a verdict, {some(left, MOST_NAMED)}"
            yield f"shard {number}/{len(plan.shard.parts)} {how}: {cells}"

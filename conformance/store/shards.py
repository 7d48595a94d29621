"""Cuts a plan into shards, and joins the runs of shards into one run.

The cut is the same on every machine that plans the same cells. The plan of a shard holds its own cells, where they
stand in the whole plan, and a digest of that. Joining copies lines, and executes nothing: each shard is first read, so
that none is damaged. Then all must be of one whole plan and hold each of its cells once, or the joined run is
incomplete.
"""

import contextlib
import hashlib
import heapq
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from conformance.errors import StoreError, UsageError, counted, some
from conformance.records.convert import to_json
from conformance.records.plan import Plan, PlannedCell, Shard, in_words
from conformance.store import files, run_files
from conformance.store.durations import Estimate, ModelSeconds, estimate, of_run, of_the_zoo

PROCESSOR = ("cpu", "cpu_capability")  # hosted machines of one kind differ in these
NOT_COMPARED = ("executable", "cores")  # of the environment: no verdict depends on them
OF_CELLS = ("cells", "models", "modes", "compiling_modes", "symptoms")  # of the plan: a shard has those of its cells
APART = ("environment", "digests", "gpus", "shard", "lacks", "judge", "command", *OF_CELLS)  # of the plan
SOURCE = "source "
MOST_NAMED = 3
DIGITS = 16  # of the digest
ALMOST = 1 - 1e-9  # because sums of seconds are rounded


def split(plan: Plan, count: int, balance: Path | None) -> list[Shard]:
    """The shards of a plan. Some have no cells if there are more of them than parts.

    The longest part goes first, each to the shard that has least so far. What decides is the plan and the seconds; both
    are the same everywhere, because the seconds are part of this package or of the run that is named.

    Args:
        plan: the whole plan.
        count: number of shards.
        balance: the folder of a run whose seconds decide; None for those that were measured of the zoo.

    Raises:
        UsageError: that run cannot be read or has no seconds.
    """
    seconds = estimate(plan, of_the_zoo() if balance is None else _of_run(balance))
    loads = [(0.0, number) for number in range(count)]
    places: list[list[int]] = [[] for _ in loads]
    for weight, part in sorted(_parts(plan, count, seconds), key=lambda one: (-one[0], _mixed(plan.cells[one[1][0]]))):
        load, lightest = loads[0]
        heapq.heapreplace(loads, (load + weight, lightest))
        places[lightest] += part
    whole = _digest(plan.with_cells(plan.cells))
    of_whole = len(plan.cells), tuple(dict.fromkeys(one.cell.precision for one in plan.cells)), whole
    return [Shard(number, count, tuple(sorted(own)), *of_whole) for number, own in enumerate(places, 1)]


def cut(plan: Plan, shard: Shard) -> Plan:
    """The plan of a shard alone."""
    return replace(plan.with_cells([plan.cells[place] for place in shard.places]), shard=shard)


def _mixed(first: PlannedCell) -> bytes:
    """What orders parts that take equally long, so that neighbours in the plan come into different shards."""
    return hashlib.blake2b(first.id.encode()).digest()


def _parts(plan: Plan, count: int, seconds: Estimate) -> Iterator[tuple[float, list[int]]]:
    """The places of cells that stay together, and their seconds.

    A model is one part, because its cells share a reference, which takes longer than most of them. It is split if it
    takes as long as two shards should, unless it is timed, which compares its cells.
    """
    models: dict[str, list[int]] = {}
    for place, planned in enumerate(plan.cells):
        models.setdefault(planned.cell.model, []).append(place)

    def weight(places: list[int]) -> float:
        return sum(seconds(plan.cells[place] for place in places).values())

    weights = {name: weight(places) for name, places in models.items()}
    share = ALMOST * sum(weights.values()) / count
    for name, places in models.items():
        is_timed = plan.measure and plan.models[name].timed != ()
        pieces = 1 if is_timed or not share else max(1, min(len(places), int(weights[name] / share)))
        for piece in range(pieces):
            part = places[len(places) * piece // pieces : len(places) * (piece + 1) // pieces]
            yield weight(part), part


def _of_run(folder: Path) -> dict[str, ModelSeconds]:
    seconds = of_run(run_files.read(folder))
    if not seconds:
        raise UsageError(f"--balance {folder}: no cell of it was judged")
    return seconds


@dataclass(frozen=True)
class Part:
    """A shard that was read.

    Attributes:
        folder, plan, shard: its folder, its plan, and what the plan says of the whole one.
        lines: what it judged and measured.
        left: ids of its cells that have no verdict.
    """

    folder: Path
    plan: Plan
    shard: Shard
    lines: bytes
    left: tuple[str, ...]


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
    parts = [first := _read(folders[0])]
    compared = _compared(first.plan)
    for other in map(_read, folders[1:]):
        if different := _differences(first, compared, other, any_cpu=any_cpu):
            raise UsageError(f"{first.folder} and {other.folder} cannot be joined: {'; '.join(different)}")
        parts.append(replace(other, plan=replace(other.plan, digests={})))  # which are the same, and many
    parts.sort(key=lambda part: part.shard.index)
    for part, other in pairwise(parts):
        if part.shard.index == other.shard.index:
            raise UsageError(f"shard {part.shard} is there twice: {part.folder} and {other.folder}")
    joined = _joined(first, parts)
    twice = sum(len(part.plan.cells) for part in parts) - len(joined.cells)
    if twice or not (joined.lacks or _digest(joined) == first.shard.whole):
        raise UsageError("these shards do not hold each cell of their plan once: they are balanced by different runs")
    lines, missing = b"".join(part.lines for part in parts), list(_missing(joined, parts))
    parts.clear()  # the joined run is decoded now, which needs the memory
    _write(into, joined, lines)
    return missing


def _read(folder: Path) -> Part:
    try:
        raw = run_files.read_files(folder)
        contents = run_files.decode(folder, raw, {})  # what was observed is decoded once, of the joined run
    except UsageError as problem:
        raise UsageError(f"{problem}; the other runs can be joined without {folder}") from None
    plan = contents.plan
    if plan.shard is None:
        raise UsageError(f"{folder} is no shard; merge joins the runs of conformance run --shard I/N")
    lines = [line for line in raw.lines.splitlines(keepends=True) if line.endswith(b"\n")]
    kept = b"".join(line for line in lines if not files.text_of(line).startswith(b'{"selected":'))
    left = tuple(one.id for one in plan.cells if one.id not in contents.verdicts)
    return Part(folder, plan, plan.shard, kept, left)


def _differences(one: Part, compared: Mapping[str, Any], other: Part, *, any_cpu: bool) -> list[str]:
    """What differs between two shards, one phrase each; `compared` is what must be the same of the first."""
    left_out = NOT_COMPARED + PROCESSOR * any_cpu
    was, now = _settings(one.plan), _settings(other.plan)
    names = [name for name in was if name not in left_out and was[name] != now[name]]
    found = [f"{name} {in_words(was[name])} and {in_words(now[name])}" for name in names]
    if one.plan.judge.code != other.plan.judge.code:
        found.append(f"they have different judges, {one.plan.judge} and {other.plan.judge}")
    theirs = _compared(other.plan)
    changed = [name for name, what in compared.items() if theirs.get(name, what) != what]
    alone = [name for name in compared.keys() ^ theirs.keys() if name.startswith(SOURCE)]
    if changed or alone:
        found.append(f"{some(changed)} differs" if changed else f"{some(sorted(alone))} is in one of them alone")
    if not found and (one.shard.whole, one.shard.count) != (other.shard.whole, other.shard.count):
        commands = (shlex.join(("conformance", *part.plan.command)) for part in (one, other))
        found.append(f"they are of different plans, shard {one.shard} and {other.shard} of {' and '.join(commands)}")
    return found


def _settings(plan: Plan) -> dict[str, Any]:
    """What is short enough to show, by name."""
    own = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in APART}
    return {field.name: getattr(plan.environment, field.name) for field in fields(plan.environment)} | own


def _compared(plan: Plan) -> dict[str, Any]:
    """Digests and places of the sources, by paths from the folder that holds them all, and the cells."""
    top = _top(tuple(plan.digests))

    def short(path: str) -> str:
        return _from(top, path)

    return {
        **{f"{SOURCE}{short(path)}": digest for path, digest in plan.digests.items()},
        **{f"mode {name}": place.moved(short) for name, place in plan.modes.items()},
        **{
            f"model {name}": replace(model, location=model.location.moved(short), written=None)
            for name, model in plan.models.items()
        },
        **{f"cell {planned.id}": planned for planned in plan.cells},
    }


@lru_cache(maxsize=1)
def _top(paths: tuple[str, ...]) -> str:
    """The folder that holds all of these files."""
    return os.path.commonpath([str(Path(path).parent) for path in paths] or [os.sep])


@lru_cache(maxsize=10_000)
def _from(folder: str, path: str) -> str:
    return os.path.relpath(path, folder) if path else ""


def _digest(plan: Plan) -> str:
    """What tells a whole plan from all others, on whatever machine and wherever its sources lie."""
    every = {**_compared(plan), **{name: getattr(plan, name) for name in ("compiling_modes", "symptoms")}}
    text = json.dumps({name: to_json(value) for name, value in every.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _joined(first: Part, parts: Sequence[Part]) -> Plan:
    """The plan of the joined run, its cells in the order of the whole plan."""
    plans = [part.plan for part in parts]
    cpu, capability = (" and ".join(dict.fromkeys(getattr(p.environment, name) for p in plans)) for name in PROCESSOR)
    there = {part.shard.index for part in parts}
    placed = {place: one for part in parts for place, one in zip(part.shard.places, part.plan.cells, strict=True)}
    cells = tuple(placed[place] for place in sorted(placed))
    compiling = {name for plan in plans for name in plan.compiling_modes}
    return replace(
        first.plan,
        shard=None,
        lacks=_say([number for number in range(1, first.shard.count + 1) if number not in there], first.shard.count),
        command=(),
        environment=replace(first.plan.environment, cpu=cpu, cpu_capability=capability),
        cells=cells,
        models={name: model for plan in plans for name, model in plan.models.items()},
        modes={name: place for plan in plans for name, place in plan.modes.items()},
        compiling_modes=tuple(name for name in dict.fromkeys(one.cell.mode for one in cells) if name in compiling),
        symptoms={name: symptom for plan in plans for name, symptom in plan.symptoms.items()},
        gpus=tuple(sorted({number for plan in plans for number in plan.gpus})),
    )


def _say(numbers: Sequence[int], count: int) -> str:
    """Shards in words, their numbers as an array job takes them; "" if there are none.

    >>> _say([2, 5, 6, 7], 9), _say([3], 4), _say([], 4)
    ('shards 2,5-7 of 9', 'shard 3 of 4', '')
    """
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1][1:] = [number]
        else:
            rows.append([number])
    said = ",".join("-".join(map(str, row)) for row in rows)
    return f"shard{'s' * (len(numbers) > 1)} {said} of {count}" if rows else ""


def _write(into: Path, plan: Plan, lines: bytes) -> None:
    """Write the joined run whole, or not at all."""
    try:
        run_files.create(into, plan, lines)
        run_files.Writer(into).close()  # which says that the run is complete, if it is
    except (OSError, StoreError, UsageError) as problem:
        with contextlib.suppress(StoreError):
            files.remove(into)
        if isinstance(problem, UsageError):  # a record is wrong, although its sum is right
            raise
        raise StoreError(f"--into {into}: {problem}") from None


def _missing(joined: Plan, parts: Sequence[Part]) -> Iterator[str]:
    """The shards that are not there, and the cells that a shard did not judge."""
    if joined.lacks:
        most = parts[0].shard.cells
        yield f"missing: {joined.lacks}, with {most - len(joined.cells)} of {counted(most, 'cell')}"
    for part in parts:
        if part.left:
            cells = f"{counted(len(part.left), 'cell')} without a verdict, {some(part.left, MOST_NAMED)}"
            yield f"shard {part.shard} ({part.folder}) is incomplete: {cells}"

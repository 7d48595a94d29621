"""Splits the models of a plan into shards of about equal time, the same on every machine that plans the same cells."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from conformance.errors import UsageError
from conformance.records.plan import Plan, Shard
from conformance.run import store

ZOO_SECONDS = "zoo_seconds.json"  # seconds by model, from `python -m benchmarks.zoo_seconds RUN`
COMPILED = 10.0  # a compiled cell takes about so many times as long as another one
LEAST = 0.1  # seconds that a model takes whose reference is refused, so that none of its cells runs
REFERENCE = 3.0  # and a reference takes as long as so many eager cells


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
    seconds = _of_the_zoo() if balance is None else _of_run(balance)
    weights = _weights(plan, seconds)
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for model in sorted(weights, key=lambda name: (-weights[name], _stable_hash(name))):
        lightest = loads.index(min(loads))
        parts[lightest].append(model)
        loads[lightest] += weights[model]
    return Shard(index, tuple(tuple(part) for part in parts))


def seconds_of(contents: store.Contents) -> dict[str, float]:
    """The seconds that each model of a run took, its reference included."""
    found: dict[str, float] = {}
    references: dict[str, float] = {}
    for planned in contents.plan.cells:
        verdict = contents.verdicts.get(planned.id)
        if verdict is not None and not planned.skip:
            model = planned.cell.model
            found[model] = found.get(model, 0.0) + verdict.seconds
            reference = verdict.observation.seconds.get("reference", 0.0)
            references[model] = max(references.get(model, 0.0), reference)
    return {model: max(found[model] + references[model], LEAST) for model in found}


def _weights(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """What each model will take: its seconds; where none are known, as many as others with such cells."""
    guesses = dict.fromkeys(plan.models, REFERENCE)
    for planned in plan.cells:
        if not planned.skip:
            guesses[planned.cell.model] += COMPILED if planned.cell.mode in plan.compiling_modes else 1.0
    known = [seconds[model] / guess for model, guess in guesses.items() if model in seconds]
    unit = statistics.median(known) if known else 1.0
    return {model: seconds.get(model, guess * unit) for model, guess in guesses.items()}


def _stable_hash(name: str) -> bytes:
    """Python's own hash differs in every process."""
    return hashlib.blake2b(name.encode()).digest()


def _of_the_zoo() -> dict[str, float]:
    text = resources.files(__package__).joinpath(ZOO_SECONDS).read_text(encoding="utf-8")
    return dict(json.loads(text))


def _of_run(folder: Path) -> dict[str, float]:
    found = seconds_of(store.read(folder))
    if not found:
        raise UsageError(f"--balance {folder}: no cell of it was judged")
    return found

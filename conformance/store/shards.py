"""Splits the models of a plan into shards of about equal time, the same on every machine that plans the same cells."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from conformance.errors import UsageError
from conformance.records.cell import model_of
from conformance.records.plan import Plan, Shard
from conformance.store import run_files
from conformance.store.durations import ModelSeconds, of_cells, of_run, of_the_zoo


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
    for model in sorted(weights, key=lambda name: (-weights[name], _stable_hash(name))):
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


def _stable_hash(name: str) -> bytes:
    """Python's own hash differs in every process."""
    return hashlib.blake2b(name.encode()).digest()


def _of_run(folder: Path) -> dict[str, ModelSeconds]:
    found = of_run(run_files.read(folder))
    if not found:
        raise UsageError(f"--balance {folder}: no cell of it was judged")
    return found

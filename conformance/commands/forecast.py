"""About how long a run will take: as long as such cells took in the last runs of this folder, or as the zoo took."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from conformance.errors import UsageError
from conformance.figures.speed import PROCESSES
from conformance.one_line import counted
from conformance.records.cell import model_of
from conformance.records.plan import Plan
from conformance.records.verdicts import Verdict
from conformance.show.progress import say_seconds
from conformance.store import run_files
from conformance.store.durations import Durations, ModelSeconds, of_run, of_the_zoo
from conformance.store.run_files import Contents

CHEAP, COMPILED, SPEEDS = "cells that are not compiled", "compiled cells", "speeds"
EARLIER_RUNS = 3  # that are read
WORKER_SECONDS = 20.0  # of cells that are worth another worker, which imports torch first
MEASURE_SECONDS = 1.4  # in which a job that times a group of cells measures alone
PREPARE_SECONDS = 1.0  # in which it prepares, without what it compiles
WORKING_SIZE = 0.3  # of the seconds of a compiled cell, to compile the working size


class Forecast:
    """What the cells to judge will take.

    Args:
        contents: what is stored of the run.
        folder: its folder.

    Attributes:
        contents: the same.
        expected: the kind of each cell to judge and about how many seconds it will take, by id. The model's reference
            counts for its cells in equal parts.
        new: the models among these that no recent run has judged, which may be of any size.
    """

    def __init__(self, contents: Contents, folder: Path) -> None:
        plan = contents.plan
        durations = Durations(plan, {**of_the_zoo(), **_of_earlier_runs(folder), **of_run(contents)})
        planned = {one.id: one for one in plan.cells}
        self.contents = contents
        self._speeds = _speeds(plan, durations) if plan.measure else 0.0
        self._sharing = Counter(planned[cell].cell.model for cell in contents.missing if not planned[cell].skip)
        self.new = [model for model in self._sharing if not durations.knows(model)]
        self.expected: dict[str, tuple[str, float]] = {}
        for name in contents.missing:
            one = planned[name]
            kind = COMPILED if one.cell.mode in plan.compiling_modes else CHEAP
            share = 0.0 if one.skip else durations.reference(one.cell.model) / self._sharing[one.cell.model]
            self.expected[name] = (kind, durations.cell(one) + share)

    @property
    def workers(self) -> int:
        """The most processes that save time: to start one more takes as long as to judge some cells."""
        return 1 + int(sum(seconds for _, seconds in self.expected.values()) // WORKER_SECONDS)

    def took(self, verdict: Verdict) -> float:
        """The seconds of a judged cell and its part of the reference."""
        share = verdict.observation.seconds.get("reference", 0.0) / (self._sharing[model_of(verdict.cell)] or 1)
        return verdict.seconds + share

    def opening(self, at_once: int) -> str:
        """How long all of it will take, in one sentence."""
        parts: dict[str, float] = {}
        for kind, seconds in self.expected.values():
            parts[kind] = parts.get(kind, 0.0) + seconds / at_once
        parts[SPEEDS] = self._speeds
        named = ", ".join(f"{say_seconds(seconds)} for {kind}" for kind, seconds in parts.items() if seconds)
        parted = f": {named}" if named.count(" for ") > 1 else ""
        who = self.new[0] if len(self.new) == 1 else counted(len(self.new), "model")
        guess = f"; that is a guess for {who}, which no recent run has judged" if self.new else ""
        return f"this takes about {say_seconds(sum(parts.values()))}{parted}{guess}"


def _speeds(plan: Plan, durations: Durations) -> float:
    """The seconds of all speeds. Jobs prepare on all cores, the first of a group compiles, and they measure in turn."""
    timed = [one for one in plan.own_cells if not one.skip and plan.is_timed(one.cell.model, one.cell.precision)]
    jobs = PROCESSES * len({(one.cell.model, one.cell.precision, one.cell.device) for one in timed})
    compiled = [replace(one, left_out=()) for one in timed if one.cell.mode in plan.compiling_modes]
    compiling = WORKING_SIZE * sum(map(durations.cell, compiled))
    return jobs * MEASURE_SECONDS + (jobs * PREPARE_SECONDS + compiling) / (os.cpu_count() or 1)


def _of_earlier_runs(folder: Path) -> dict[str, ModelSeconds]:
    """The seconds of models in the latest runs beside a run."""
    found: dict[str, ModelSeconds] = {}
    earlier = sorted(path for path in folder.parent.glob("*") if path.name < folder.name and path.is_dir())
    for path in earlier[-EARLIER_RUNS:]:
        with contextlib.suppress(UsageError, OSError):
            found |= of_run(run_files.read(path))
    return found

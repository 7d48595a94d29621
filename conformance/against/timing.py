"""Times cells at two revisions: each in a worker of its own, one call after the other, in random order.

The meter and its controls are those of `figures.meter` and `figures.controls`, but the calls run in the workers. A
second worker of the older revision must come out the same, and a third one with 10 % more work must come out slower.
Each process has a bias of its own that no interval shows, so everything is done twice with fresh workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance.against.worker import Worker
from conformance.errors import NotMeasuredError, TimedCallError, WorkerError
from conformance.figures import meter, speed
from conformance.figures.controls import check_controls
from conformance.figures.meter import TimedCall
from conformance.figures.speed import Speed
from conformance.records.measurements import CellTiming, Reason, Sample, Timing
from conformance.records.revisions import (
    PREPARE_REVISION,
    SAMPLE,
    SETTLE,
    WARM_UP,
    WRONG_RESULT,
    TimedCellRequest,
    TimedRevision,
)
from conformance.records.tasks import Nothing
from conformance.run import machine_lock

OLD, SAME, SLOWED, NEW = "then", "then again", "then, and 10 % more work", "now"
ALL = (OLD, SAME, SLOWED, NEW)  # each in a process of its own: one that is sampled more often would be warmer


@dataclass(frozen=True)
class Comparable:
    """Cells of one model, precision and device that pass at both revisions.

    Attributes:
        old: the task for the workers of the older revision.
        new: the task for the worker of the newer one.
    """

    old: TimedRevision
    new: TimedRevision

    @property
    def cells(self) -> tuple[str, ...]:
        """The ids of the cells."""
        return tuple(task.cell.id for task in self.new.cells)


def time_revisions(cells: Comparable, old: Callable[[], Worker], new: Callable[[], Worker]) -> list[Speed]:
    """The speed of each cell now, compared with the older revision.

    Args:
        cells: the cells to time.
        old: starts a worker of the older revision.
        new: starts a worker of the newer one.
    """
    results = [_Session(cells, index).run(old, new) for index in range(speed.PROCESSES)]
    return [speed.pooled_speed(name, results) for name in cells.cells]


class _Session:
    """All cells, timed once by fresh workers."""

    def __init__(self, cells: Comparable, process_index: int) -> None:
        self._cells, self._process_index = cells, process_index
        self._workers: dict[str, Worker] = {}
        self._reasons: dict[str, Reason] = {}

    def run(self, old: Callable[[], Worker], new: Callable[[], Worker]) -> Timing:
        """Prepare while other cells may run, then measure alone on the machine."""
        found: dict[str, CellTiming] = {}
        with contextlib.ExitStack() as stack:
            for who in ALL:
                self._workers[who] = stack.enter_context(new() if who == NEW else old())
            with machine_lock.shared():
                self._prepare()
            with machine_lock.alone():
                for name in self._ready:
                    with self._reason_of(name):
                        self._warm_up(name)
                self._settle()
                for name in self._ready:
                    with self._reason_of(name):
                        found[name] = self._measure(name)
        refused = {name: CellTiming(reason=why) for name, why in self._reasons.items()}
        return Timing(self._cells.new.figure, {**found, **refused})

    @property
    def _ready(self) -> list[str]:
        return [name for name in self._cells.cells if name not in self._reasons]

    @contextlib.contextmanager
    def _reason_of(self, name: str) -> Iterator[None]:
        """A context that notes an error as the reason of one cell, so that the others are still timed."""
        try:
            yield
        except TimedCallError as problem:
            self._reasons[name] = _reason(str(problem.problem))
        except NotMeasuredError as problem:
            self._reasons[name] = Reason(problem.short, problem.detail)
        except WorkerError as problem:
            self._reasons[name] = _reason(str(problem))

    def _prepare(self) -> None:
        """Have every worker prepare every cell, all workers at once."""
        for who, worker in self._workers.items():
            worker.send(PREPARE_REVISION, self._cells.new if who == NEW else self._cells.old)
        for worker in self._workers.values():
            try:
                self._reasons |= worker.receive(PREPARE_REVISION).reasons
            except WorkerError as problem:
                self._reasons |= dict.fromkeys(self._cells.cells, _reason(str(problem)))

    def _warm_up(self, cell: str) -> None:
        for who in ALL:
            refused = self._workers[who].call(WARM_UP, TimedCellRequest(cell, slowed=who == SLOWED)).reasons
            if refused:
                raise NotMeasuredError(refused[cell].short, refused[cell].detail)

    def _settle(self) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(WorkerError):  # the first sample shows which worker has died
                worker.call(SETTLE, Nothing())

    def _measure(self, cell: str) -> CellTiming:
        """Time one cell; the figures are those of the newer revision."""
        request = TimedCellRequest(cell)
        calls = [TimedCall(who, partial(self._workers[who].call, SAMPLE, request)) for who in ALL]
        rounds = meter.measure(calls, _Relay(), seed=self._process_index, budget=speed.BUDGET)
        check_controls(rounds.ratio(OLD, SAME), rounds.ratio(OLD, SLOWED))
        for who in (OLD, NEW):
            wrong = self._workers[who].call(WRONG_RESULT, request).text
            if wrong:
                raise NotMeasuredError("wrong result in a timed call", f"{who}, {wrong}")
        return CellTiming(rounds.seconds(NEW), 0, {OLD: rounds.ratio(OLD, NEW)})


def _reason(text: str) -> Reason:
    """A worker's error text as a reason: the part before the first colon is the short one."""
    short, _, detail = text.partition(": ")
    return Reason(short, detail)


class _Relay:
    """A clock for calls that are timed in the worker, and return their sample."""

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, None]:
        """The sample that the call took."""
        return call(), None

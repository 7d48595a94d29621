"""Runs in a worker when two revisions are timed: prepares the cells of one revision, and times single calls."""

from __future__ import annotations

import gc

import torch

from conformance.cell.policy import set_policy
from conformance.cell.session import open_task
from conformance.errors import NotMeasuredError
from conformance.figures import meter
from conformance.figures.meter import Clock
from conformance.measure.clocks import clock_for
from conformance.measure.extra_work import no_recompilation, slow_down
from conformance.measure.timed_cell import TimedCell
from conformance.one_line import name_of
from conformance.oracle.error_text import one_line
from conformance.records.measurements import Reason, Sample
from conformance.records.revisions import NotTimed, TimedCellRequest, TimedRevision, WrongResult
from conformance.records.tasks import Nothing
from conformance.run.child_side import ChildProcess

_timed: dict[str, TimedCell] = {}
_clocks: dict[str, Clock] = {}
_for_good = no_recompilation()


def prepare(task: TimedRevision) -> NotTimed:
    """Prepare the cells of one model for timing. A cell that cannot be timed has a reason in the result."""
    set_policy()
    torch.set_grad_enabled(task.figure != "forward")
    reasons = {}
    for cell in task.cells:
        name = cell.cell.id
        try:
            _timed[name] = TimedCell(open_task(cell, ChildProcess()), task.figure)
        except NotMeasuredError as problem:
            reasons[name] = Reason(problem.short, problem.detail)
        except BaseException as problem:  # noqa: BLE001 -- the mode may raise anything
            reasons[name] = Reason(name_of(problem), one_line(problem))
    return NotTimed(reasons)


def warm_up(task: TimedCellRequest) -> NotTimed:
    """Call a cell until its time is steady; with `slowed`, add a tenth more work to its calls."""
    timed = _timed[task.cell]
    device = timed.session.cell.device
    if device not in _clocks:
        _clocks[device] = clock_for(device)
    try:
        meter.warm_up(timed.call, _clocks[device])
    except NotMeasuredError as problem:
        return NotTimed({task.cell: Reason(problem.short, problem.detail)})
    if task.slowed:
        slow_down(timed.call, device)
    return NotTimed()


def settle(task: Nothing) -> Nothing:
    """Forbid compilation, and stop the garbage collector, for the rest of the process."""
    gc.collect()
    gc.disable()
    _for_good.__enter__()
    return task


def sample(task: TimedCellRequest) -> Sample:
    """Time one call of a cell."""
    timed = _timed[task.cell]
    clock = _clocks[timed.session.cell.device]
    taken, result = meter.primed(timed.call, clock, meter.priming_calls(timed.call.quickest))
    timed.keep(result)
    return taken


def wrong_result(task: TimedCellRequest) -> WrongResult:
    """Check one of a cell's timed results, drawn at random."""
    return WrongResult(_timed[task.cell].wrong_result())

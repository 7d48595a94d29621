"""Child process: looks at one cell for `conformance explain`: its numbers beside eager's, and its modules."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from conformance.cell import observe, places
from conformance.cell.session import open_task
from conformance.gates import compare
from conformance.gates.budget import TensorCriteria
from conformance.process import child_side
from conformance.records.cell import Discrepancy
from conformance.records.explained import Look, Numbers
from conformance.records.tasks import CellTask
from conformance.verdict import VALUES, named_gate


def look(task: CellTask, process: child_side.ChildProcess) -> Look:
    """Run a cell again, and look at what a verdict leaves out.

    Raises:
        Whatever the model raises when it is built.
    """
    session = open_task(task, process)
    found: list[Numbers] = []

    def note(y: Any, criteria: TensorCriteria, again: Any, fault: str, drawn: Sequence[Any]) -> Discrepancy:
        seen = compare.compare(y, criteria, again, fault, drawn)
        found.append(_numbers(y, criteria, seen))
        return seen

    if task.reference:
        observe.observe(task, process, note)
    exits = () if session.spec.fit else places.walk(session, session.cases[0])[0]
    return Look(tuple(sorted(found, key=lambda one: -one.margin)), exits)


def _numbers(y: torch.Tensor | None, criteria: TensorCriteria, seen: Discrepancy) -> Numbers:
    """What is known of a tensor by the gate that rejects it, or the one that is nearest to it."""
    nearest = max(seen.measures, key=lambda measure: (measure.margin, measure.gate in VALUES))
    worst = named_gate(seen) or nearest
    oracle, comparable = criteria.reference.oracle, y is not None and tuple(y.shape) == criteria.reference.oracle.shape
    size = oracle.norm or 1.0
    error = eager = ulps = None
    at = ""
    finite = oracle.is_rounded and y is not None and bool(y.isfinite().all()) and not y.is_complex()
    if y is not None and comparable and finite and y.numel():
        distance = oracle.distance(y)
        error = distance.absolute / size
        eager = error if criteria.beside is None else criteria.beside.absolute / size
        value, wanted = (float(t.reshape(-1)[distance.worst]) for t in (y.detach().cpu().double(), oracle.reals))
        at = str(oracle.index(distance.worst))
        if y.is_floating_point() and math.isfinite(value - wanted):
            ulps = abs(value - wanted) / _spacing(wanted, y.dtype)
    return Numbers(
        seen.case,
        str(seen.tensor),
        seen.dtype,
        worst.gate,
        worst.value,
        worst.budget,
        error,
        eager,
        at,
        ulps,
        worst.margin,
    )


def _spacing(number: float, dtype: torch.dtype) -> float:
    """The distance of a number of a dtype to the next one."""
    info = torch.finfo(dtype)
    return info.eps * 2.0 ** math.floor(math.log2(max(abs(number), info.tiny)))

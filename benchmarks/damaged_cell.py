"""Child process of a calibrated cell: it runs the cell, then damages its tensors and judges them again."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.damages import JUDGED, Victim, damaged, damaged_draws
from benchmarks.rivals import known, rejections
from benchmarks.tasks import UNDAMAGED, DamagedCell, Survivor
from conformance.cell import observe as cell
from conformance.evaluate import weights
from conformance.float64 import wide
from conformance.gates.budget import TensorCriteria
from conformance.gates.compare import compare, measures_of, name_of
from conformance.plan.find import spec_at
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Discrepancy
from conformance.records.tasks import CellTask
from conformance.verdict import failed_gate

Kept = list[tuple[torch.Tensor, TensorCriteria, Sequence[torch.Tensor | None]]]


def observe(task: CellTask, process: ChildProcess) -> DamagedCell:
    """Run a cell as a run does, then apply every damage to every tensor that passed."""
    kept: Kept = []

    def keeping(
        y: torch.Tensor | None,
        criteria: TensorCriteria,
        again: torch.Tensor | None,
        fault: str,
        drawn: Sequence[torch.Tensor | None],
    ) -> Discrepancy:
        if y is not None and not fault:
            kept.append((y.detach().cpu(), criteria, drawn))
        return compare(y, criteria, again, fault, drawn)

    seen = cell.observe(task, process, keeping)
    if seen.ending != "finished":
        return DamagedCell(seen)
    process.enter("damage")
    with process.shared():
        started = time.perf_counter()
        tally = Tally({e.tensor: e.dtype for e in task.expect if e.outcome == "dtype"})
        for victims in _victims_by_case(kept, task):
            for victim in victims:
                tally.try_all(victim)
        seconds = time.perf_counter() - started
    return DamagedCell(seen, tally.counts, tuple(tally.survivors), seconds)


def _victims_by_case(kept: Kept, task: CellTask) -> list[list[Victim]]:
    spec = spec_at(task.location, task.cell.model)
    state = weights.state_of(wide.prepared_model(spec, task.seed))
    cases: dict[str, list[Victim]] = {}
    for y, criteria, drawn in kept:
        name = criteria.tensor
        before = state.get(name.leaf) if name.kind == "buffer" else None
        victim = Victim(y, criteria, task.seed, before=before)
        victim.draws = [replace(victim, y=t.cpu(), draws=[]) for t in drawn if t is not None]
        cases.setdefault(criteria.case, []).append(victim)
    for victims in cases.values():
        rows = [len(v.y) for v in victims if v.name.kind == "output" and v.y.dim()]
        for victim in victims:
            victim.rows, victim.others = (rows or [1])[0], victims
            for number, there in enumerate(victim.draws):
                there.rows, there.others = victim.rows, [v.draws[number] for v in victims if number < len(v.draws)]
    return list(cases.values())


class Tally:
    """Counts which gates and which rivals reject damaged tensors.

    Args:
        dtypes: declared by expectations, by tensor name; they replace the contract's.

    Attributes:
        counts: see `DamagedCell.damages`.
        survivors: see `DamagedCell.survivors`.
    """

    def __init__(self, dtypes: dict[str, str]) -> None:
        self._dtypes = dtypes
        self.counts: dict[str, Counter[str]] = {}
        self.survivors: list[Survivor] = []

    def try_all(self, victim: Victim) -> None:
        """Judge a tensor undamaged and, if it passes, under every damage."""
        y, criteria = victim.y, victim.criteria
        if criteria.kind == "empty":
            return
        beside = known(y, criteria)
        judged = self._judged(y, criteria, [there.y for there in victim.draws])
        self._count(UNDAMAGED, _rejecting_gates(judged), rejections(y, beside))
        if failed_gate(judged) is not None or criteria.kind not in JUDGED:
            return
        for name, z in damaged(victim):
            judged = self._judged(z, criteria, damaged_draws(victim, name))
            gates = _rejecting_gates(judged)
            self._count(name, gates, rejections(z, beside))
            if not gates:
                margin = max((m.margin for m in judged.measures), default=0.0)
                size = _relative_size(z, y)
                self.survivors.append(Survivor(name, criteria.case, str(victim.name), criteria.kind, size, margin))

    def _judged(self, y: torch.Tensor, criteria: TensorCriteria, drawn: Sequence[torch.Tensor]) -> Discrepancy:
        """As `compare`, but without canaries: they do not depend on the values of y."""
        asked = self._dtypes.get(str(criteria.tensor), criteria.dtype)
        measures = measures_of(y, criteria, drawn)
        return Discrepancy(criteria.case, criteria.tensor, criteria.kind, name_of(y.dtype), asked, measures)

    def _count(self, damage: str, gates: list[str], rivals: list[str]) -> None:
        row = self.counts.setdefault(damage, Counter(tried=0, killed=0))
        row.update(["tried", *(["killed"] if gates else []), *gates, *rivals])


def _rejecting_gates(judged: Discrepancy) -> list[str]:
    """Every gate that rejects a tensor, not only the first."""
    if failed_gate(judged) is None:
        return []
    wrong = judged.dtype_asked and judged.dtype != judged.dtype_asked
    return [m.gate for m in judged.measures if not m.met] + (["dtype"] if wrong else [])


def _relative_size(z: torch.Tensor, y: torch.Tensor) -> float:
    if z.shape != y.shape:
        return math.nan
    wide = torch.complex128 if y.is_complex() else torch.float64
    size = float(y.to(wide).nan_to_num(0.0, 0.0, 0.0).norm())
    gap = float((z.to(wide) - y.to(wide)).nan_to_num(0.0, 0.0, 0.0).norm())
    return gap / size if size else math.inf

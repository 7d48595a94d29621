"""What the child process of a calibrated cell does: the cell as it is, then damage to its tensors, judged."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from damages import JUDGED, Victim, damaged
from rivals import known, rejections

from conformance.cell import observe
from conformance.oracle import evaluation, float64
from conformance.gates.compare import Ruler, _measures, name_of
from conformance.verdict import failed_gate
from conformance.records import Discrepancy, plain
from conformance.plan.find import Home

if TYPE_CHECKING:
    from collections.abc import Callable

UNDAMAGED = "nothing"
Kept = list[tuple[torch.Tensor, Ruler]]


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: `conformance.cell.observe:observe`, then every damage to every tensor that it passed.

    Returns: {"seen": the observation, "damages": counts by damage, "survivors": what no gate saw,
        "seconds": spent on damages}.
    """
    kept = _keep_compared()
    seen = observe.observe(task, enter_phase)
    if seen["ending"] != "finished":
        return {"seen": seen, "damages": {}, "survivors": [], "seconds": 0.0}
    enter_phase("damage")
    started = time.perf_counter()
    tally = Tally(task["dtypes"])
    for victims in _victims_by_case(kept, task):
        for victim in victims:
            tally.try_all(victim)
    return {
        "seen": seen,
        "damages": tally.counts,
        "survivors": tally.survivors,
        "seconds": time.perf_counter() - started,
    }


def _keep_compared() -> Kept:
    """Keep every tensor the cell compares with the ruler it is held to; this process serves one cell only."""
    kept: Kept = []
    compare = observe.compare

    def keeping(y: torch.Tensor | None, held: Ruler, again: torch.Tensor | None, fault: str) -> Discrepancy:
        if y is not None and not fault:
            kept.append((y.detach().cpu(), held))
        return compare(y, held, again, fault)

    observe.compare = keeping
    return kept


def _victims_by_case(kept: Kept, task: dict[str, Any]) -> list[list[Victim]]:
    spec = Home(**task["home"]).spec(task["cell"]["model"])
    state = evaluation.state_of(float64.prepared_model(spec, task["seed"]))
    cases: dict[str, list[Victim]] = {}
    for y, held in kept:
        before = state.get(held.tensor.removeprefix("buffer ")) if held.tensor.startswith("buffer ") else None
        cases.setdefault(held.case, []).append(Victim(y, held, task["seed"], before=before))
    for victims in cases.values():
        rows = [len(v.y) for v in victims if v.name.startswith("output") and v.y.dim()]
        for victim in victims:
            victim.rows, victim.others = (rows or [1])[0], victims
    return list(cases.values())


class Tally:
    """Counts what the judge and its rivals said.

    Args:
        dtypes: declared by expectations, by tensor name; they replace the contract's.

    Attributes:
        counts: by damage: "tried", "killed", and the names of gates and rivals that said no.
        survivors: damage, case, tensor, kind, relative size of the damage, worst value over budget.
    """

    def __init__(self, dtypes: dict[str, str]) -> None:
        self._dtypes = dtypes
        self.counts: dict[str, dict[str, int]] = {}
        self.survivors: list[tuple[str | float, ...]] = []

    def try_all(self, victim: Victim) -> None:
        """Judge a tensor undamaged and, where it passes, under every damage."""
        if victim.held.kind == "empty":
            return
        beside = known(victim.y, victim.held)
        judged = self._judged(victim.y, victim.held)
        self._count(UNDAMAGED, _objections(judged), rejections(victim.y, beside))
        if failed_gate(judged) is not None or victim.held.kind not in JUDGED:
            return
        for name, z in damaged(victim):
            judged = self._judged(z, victim.held)
            gates = _objections(judged)
            self._count(name, gates, rejections(z, beside))
            if not gates:
                margin = max((m.margin for m in judged.measures), default=0.0)
                place = (victim.held.case, victim.name, victim.held.kind)
                self.survivors.append((name, *place, plain(_relative_size(z, victim.y)), plain(margin)))

    def _judged(self, y: torch.Tensor, held: Ruler) -> Discrepancy:
        """As `compare.compare`, but no canaries: they do not depend on the values of y."""
        asked = self._dtypes.get(held.tensor, held.dtype)
        return Discrepancy(held.case, held.tensor, held.kind, name_of(y.dtype), asked, _measures(y, held))

    def _count(self, damage: str, gates: list[str], rivals: list[str]) -> None:
        row = self.counts.setdefault(damage, {"tried": 0, "killed": 0})
        row["tried"] += 1
        row["killed"] += bool(gates)
        for name in gates + rivals:
            row[name] = row.get(name, 0) + 1


def _objections(judged: Discrepancy) -> list[str]:
    """Every gate that says no, not only the first."""
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

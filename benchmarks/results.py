"""What a calibration counts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.tasks import DamagedCell
from conformance.records.cell import Cell, Observation, Verdict
from conformance.records.convert import to_json

VALUE_GATES = ("norm", "null", "slice", "gain", "pointwise", "precision")

Key = tuple[str, str]  # mode, precision
Place = tuple[str, str, str]  # and gate or damage


@dataclass(frozen=True)
class CellTrial:
    """One cell of the calibration: its verdict, its damaged tensors if it finished, and its wall time."""

    cell: Cell
    verdict: Verdict
    damaged: DamagedCell | None = None
    seconds: float = 0.0


@dataclass
class Results:
    """Everything that is counted.

    Attributes:
        verdicts: seed and verdict of every cell, without the observation that it rests on.
        margins: by mode, precision and gate: each value over its budget, and where it was.
        kills: by mode, precision and damage: see `DamagedCell.damages`.
        survivors: as rows of the JSON file.
        accepted, weak: canaries, by everything that is known of them.
        tensors: by mode and precision, how many were compared.
        seconds: wall times of cells by mode.
    """

    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)
    margins: dict[Place, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    kills: dict[Place, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    survivors: list[dict[str, Any]] = field(default_factory=list)
    accepted: Counter[tuple[str, ...]] = field(default_factory=Counter)
    weak: Counter[tuple[str, ...]] = field(default_factory=Counter)
    tensors: Counter[Key] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, seed: int, trial: CellTrial) -> None:
        """Count one cell."""
        cell, verdict = trial.cell, trial.verdict
        self._add_measures(seed, cell, verdict.observation)
        if trial.damaged:
            for damage, counts in trial.damaged.damages.items():
                self.kills[cell.mode, cell.precision, damage].update(counts)
            self.survivors += [{**vars(cell), "seed": seed, **to_json(s)} for s in trial.damaged.survivors]
        self.verdicts.append((seed, replace(verdict, observation=Observation("none"))))
        self.seconds[cell.mode].append(trial.seconds)

    def _add_measures(self, seed: int, cell: Cell, seen: Observation) -> None:
        key = (cell.mode, cell.precision)
        for found in seen.discrepancies:
            where = f"{cell.id} seed {seed}, {found.tensor}, case {found.case}"
            self.tensors[key] += found.kind not in ("absent", "empty", "conduct")
            for canary in found.accepted:
                self.accepted[(*key, cell.model, str(found.tensor), found.case, canary)] += 1
            for canary in found.weak:
                self.weak[(*key, cell.model, str(found.tensor), _kind_of(canary))] += 1
            for measure in found.measures:
                gate = "null" if found.kind in ("null", "remainder") and measure.gate == "norm" else measure.gate
                if gate in VALUE_GATES:
                    self.margins[(*key, gate)].append((measure.margin, where))


def _kind_of(canary: str) -> str:
    return re.sub(r"slice \d+ of", "a slice of", canary)

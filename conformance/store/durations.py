"""About how many seconds the cells of a plan will take: as many as in a stored run, or as the zoo took once."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

from conformance.records.convert import from_json
from conformance.records.plan import Plan, PlannedCell
from conformance.store.run_files import Contents

ZOO_SECONDS = "zoo_seconds.json"  # from `python -m benchmarks.zoo_seconds RUN`
CELL, COMPILED, REFERENCE = 0.2, 20.0, 6.0  # seconds of a cell; the others take so many times as long as a cell
LEAST = 0.1  # seconds of a model whose reference is refused, so that none of its cells runs


@dataclass(frozen=True)
class ModelSeconds:
    """The seconds that a model took on one core.

    Attributes:
        reference: those of its reference.
        cell: the mean of its cells that are not compiled; None if there were none.
        compiled: the mean of those that are, at all cases.
    """

    reference: float
    cell: float | None = None
    compiled: float | None = None


class Durations:
    """The seconds that the parts of a plan will take.

    Where a model is unknown, it takes as long as the models that are known do.

    Args:
        plan: the plan.
        known: the seconds of models, by name.
    """

    def __init__(self, plan: Plan, known: Mapping[str, ModelSeconds]) -> None:
        self._known = known
        self._compiling = frozenset(plan.compiling_modes)
        own = [known[model] for model in plan.models if model in known]
        self._cell = _median((one.cell for one in own), CELL)
        self._compiled = _median((one.compiled for one in own), COMPILED * self._cell)
        self._reference = _median((one.reference for one in own), REFERENCE * self._cell)

    def knows(self, model: str) -> bool:
        """Whether the seconds of a model are known."""
        return model in self._known

    def reference(self, model: str) -> float:
        """The seconds of a model's reference."""
        return self._known[model].reference if model in self._known else self._reference

    def cell(self, planned: PlannedCell) -> float:
        """The seconds of a cell, without the reference. All cases are taken to take as long as each other."""
        if planned.skip:
            return 0.0
        known = self._known.get(planned.cell.model)
        if planned.cell.mode in self._compiling:
            whole = self._compiled if known is None or known.compiled is None else known.compiled
            return whole / (1 + len(planned.left_out))
        return self._cell if known is None or known.cell is None else known.cell


def of_run(contents: Contents) -> dict[str, ModelSeconds]:
    """The seconds of the models of a run."""
    cells: dict[str, tuple[list[float], list[float]]] = {}
    references: dict[str, float] = {}
    for planned in contents.plan.cells:
        verdict = contents.verdicts.get(planned.id)
        if verdict is not None and not planned.skip:
            model, compiles = planned.cell.model, planned.cell.mode in contents.plan.compiling_modes
            cells.setdefault(model, ([], []))[compiles].append(verdict.seconds * (1 + len(planned.left_out)))
            reference = verdict.observation.seconds.get("reference", 0.0)
            references[model] = max(references.get(model, LEAST), reference)
    return {model: ModelSeconds(references[model], _mean(of[0]), _mean(of[1])) for model, of in cells.items()}


def of_the_zoo() -> dict[str, ModelSeconds]:
    """The seconds of the zoo's models where they were measured, on one core and with an empty compile cache."""
    text = resources.files(__package__).joinpath(ZOO_SECONDS).read_text(encoding="utf-8")
    found: dict[str, ModelSeconds] = from_json(dict[str, ModelSeconds], json.loads(text))
    return found


def _mean(seconds: list[float]) -> float | None:
    return round(statistics.fmean(seconds), 2) if seconds else None


def _median(seconds: Iterable[float | None], otherwise: float) -> float:
    known = [one for one in seconds if one is not None]
    return statistics.median(known) if known else otherwise

"""About how many seconds the cells of a plan will take: as many as in a stored run, or as the zoo took once."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
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


Estimate = Callable[[Iterable[PlannedCell]], dict[str, float]]


def estimate(plan: Plan, known: Mapping[str, ModelSeconds]) -> Estimate:
    """A function that tells about how many seconds cells of a plan will take together, by id.

    The reference of a model counts for its first cell. A model that is unknown takes as long as those that are known
    do, and all cases take as long as each other.

    Args:
        plan: the plan of the cells.
        known: the seconds of models, by name.
    """
    own = [known[model] for model in plan.models if model in known]
    cell = _median((one.cell for one in own), CELL)
    compiled = _median((one.compiled for one in own), COMPILED * cell)
    typical = ModelSeconds(_median((one.reference for one in own), REFERENCE * cell), cell, compiled)

    def of_cells(cells: Iterable[PlannedCell]) -> dict[str, float]:
        found: dict[str, float] = {}
        models: set[str] = set()
        for planned in cells:
            model = planned.cell.model
            of_model = known.get(model, typical)
            compiles = planned.cell.mode in plan.compiling_modes
            whole = (of_model.compiled or compiled) if compiles else (of_model.cell or cell)
            reference = 0.0 if model in models else of_model.reference
            found[planned.id] = 0.0 if planned.skip else reference + whole / (1 + len(planned.left_out))
            models.update([] if planned.skip else [model])
        return found

    return of_cells


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

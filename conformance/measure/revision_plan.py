"""Child process: plans those of the compared sources that a revision has."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

import zoo
from conformance.cell import observe  # noqa: F401 -- it imports what a cell needs from the zoo
from conformance.errors import UsageError
from conformance.gates.compare import name_of
from conformance.measure import footprint, timed_cell  # noqa: F401 -- they import the rest that is needed
from conformance.oracle import inputs
from conformance.plan import matrix
from conformance.plan.find import names_in_the_zoo, spec_at
from conformance.records.plan import SpecLocation
from conformance.records.revisions import RevisionPlan
from conformance.records.tasks import PlanRequest
from conformance.run.child_side import ChildProcess
from zoo import catalog, internals


def make(task: PlanRequest, process: ChildProcess) -> RevisionPlan:
    """The plan for those of the sources that this revision has.

    Raises:
        UsageError: the revision's zoo is too old, or the request cannot be planned.
    """
    if lacking := _lacking():
        raise UsageError(f"its zoo has no {lacking[0]}, which this conformance needs; it lacks {len(lacking)} files")
    unknown = {source: text for source in task.sources if (text := _why_unknown(source))}
    known = tuple(source for source in task.sources if source not in unknown)
    if unknown and not known:
        return RevisionPlan(None, unknown)
    made = matrix.make(replace(task, sources=known), process)
    first = {name: _first_case(name, location, task.seed) for name, location in made.models.items()}
    return RevisionPlan(made, unknown, first)


def _lacking() -> list[str]:
    """Modules of the zoo that this revision lacks: an editable install has provided them from another folder."""
    own = Path(zoo.__path__[0])
    return sorted(
        name
        for name, module in sys.modules.items()
        if name.startswith("zoo.") and not Path(module.__file__ or "").is_relative_to(own)
    )


def _why_unknown(source: str) -> str:
    """Why a source names no model of this revision; "" if it names one, and for files."""
    try:
        if not source.endswith(".py") and not names_in_the_zoo(source):
            catalog.get_spec(source)
    except (catalog.UnknownModelError, UsageError) as problem:
        return str(problem)
    except Exception:  # noqa: BLE001 -- planning will report it
        return ""
    return ""


def _first_case(model: str, location: SpecLocation, seed: int) -> str:
    """The inputs of a model's first case in words; it is the one that is counted and timed."""
    call = inputs.draw_batch(spec_at(location, model).cases[0], seed, 0)
    words = []
    for leaf in internals.tree_leaves((call.args, dict(call.kwargs))):
        if isinstance(leaf, torch.Tensor):
            words.append(f"{tuple(leaf.shape)} {name_of(leaf.dtype)}")
        else:
            words.append(repr(leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__)
    return ", ".join(words)

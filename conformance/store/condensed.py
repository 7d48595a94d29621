"""Condenses what is stored of a cell: tensors that every gate accepts, far from their budgets, are summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.records.observation import RAISES, Discrepancy, Rest
from conformance.records.verdicts import Verdict
from conformance.verdict import failed_gate

NEAREST = 8  # tensors that are stored whole although nothing is to be said of them
NO_MARGIN = ("precision", RAISES)  # gates whose value over its budget is no measure of an error


def condensed(verdict: Verdict) -> Verdict:
    """The verdict with those tensors alone of which something is to be said, and those nearest to their budgets.

    Args:
        verdict: a verdict whose observation has every tensor.
    """
    seen = verdict.observation
    quiet = sorted((d for d in seen.discrepancies if not _tells(d)), key=_margin, reverse=True)[NEAREST:]
    if not quiet:
        return verdict
    left_out = set(map(id, quiet))
    kept = tuple(d for d in seen.discrepancies if id(d) not in left_out)
    rest = _rest([d for d in seen.discrepancies if id(d) in left_out])
    return replace(verdict, observation=replace(seen, discrepancies=kept, rest=rest))


def _tells(found: Discrepancy) -> bool:
    """Whether a gate rejects it or a canary passes, or whether it is no comparison of a tensor."""
    rejected = failed_gate(found) is not None or not all(measure.met for measure in found.measures)
    remark = found.kind in ("conduct", "absent") or any(measure.gate == RAISES for measure in found.measures)
    return rejected or remark or bool(found.accepted)


def _margin(found: Discrepancy) -> float:
    return max((measure.margin for measure in found.measures if measure.gate not in NO_MARGIN), default=0.0)


def _rest(found: Sequence[Discrepancy]) -> Rest:
    margins: dict[str, float] = {}
    dtypes: dict[str, dict[str, tuple[str, ...]]] = {}
    for d in found:
        for measure in d.measures:
            margins[measure.gate] = max(measure.margin, margins.get(measure.gate, 0.0))
        same = dtypes.setdefault(d.case, {})
        same[d.dtype] = (*same.get(d.dtype, ()), d.tensor)
    return Rest(len(found), margins, dtypes, sum(bool(d.weak) for d in found), sum(bool(d.left_to) for d in found))

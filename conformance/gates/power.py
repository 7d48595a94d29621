"""Tries the canaries on the gates: a gate that accepts a wrong tensor has no power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from conformance.gates.canaries import global_canaries, local_canaries
from conformance.gates.criteria import TensorCriteria
from conformance.gates.distance import OracleTensor, flat_reals
from conformance.gates.redraws import redraw_measures

Accepts = Callable[[torch.Tensor, TensorCriteria], bool]


@dataclass(frozen=True)
class Power:
    """What the canaries showed of the gates.

    Attributes:
        accepted: names of canaries that the gates accept and should reject.
        weak: names of local canaries that the gates accept for a reason that excuses them; see `_is_weak`.
        unresolved: this low precision cannot tell the tensor from a wrong one, but float32's budgets can.
        rejected: number of canaries with wrong values, in the right shape and dtype, that the gates reject.
    """

    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    unresolved: bool = False
    rejected: int = 0


def power_of(y: torch.Tensor, criteria: TensorCriteria, every_gate_accepts: Accepts) -> Power:
    """Try all canaries on the gates.

    Args:
        y: the candidate; the canaries get its dtype.
        criteria: the kind and the budgets of the tensor.
        every_gate_accepts: returns whether all gates accept a canary under some criteria.
    """
    if criteria.kind == "empty":
        return Power()

    def passes(canary: torch.Tensor, held: TensorCriteria) -> bool:
        return not _norm_rejects(canary, held) and every_gate_accepts(canary, held)

    reference = criteria.reference
    truth = _as_returned(reference.oracle, y)
    whole = dict(global_canaries(truth, reference, held_to_float32=criteria.uses_float32_budget))
    local = dict(local_canaries(truth, reference, criteria.budget))
    passing = [name for name, z in (whole | local).items() if passes(z, criteria)]
    rejected = _rejected_over_draws(passing, criteria)
    passing = [name for name in passing if name not in rejected]
    wrong_values = {n for n, z in (whole | local).items() if (z.shape, z.dtype) == (truth.shape, truth.dtype)}
    caught = len(wrong_values - set(passing))
    accepted = [name for name in passing if name in whole]
    local = {name: local[name] for name in passing if name in local}
    weak = [name for name, z in local.items() if _is_weak(z, criteria, passes)]
    accepted += [name for name in local if name not in weak]
    if accepted and criteria.may_be_left_to_float32:
        finely = criteria.at_float32()
        whole |= dict(global_canaries(truth, reference, held_to_float32=True))
        if not any(passes(z, finely) for z in whole.values()):
            return Power(weak=tuple(weak), unresolved=True, rejected=caught)
    return Power(tuple(accepted), tuple(weak), rejected=caught)


def _rejected_over_draws(names: Sequence[str], criteria: TensorCriteria) -> set[str]:
    """Those of the canaries that one draw accepts and all draws together reject."""
    reference = criteria.reference
    if not names or not criteria.redrawn or reference.redraws is None:
        return set()
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for truth in reference.redraws.truths:
        made = dict(global_canaries(truth, reference, held_to_float32=False))
        if tuple(truth.shape) == tuple(reference.oracle.reals.shape):
            made |= dict(local_canaries(truth, reference, criteria.budget))
        for name in names:
            if name in made:
                found[name].append(made[name])
    return {
        name
        for name, drawn in found.items()
        if len(drawn) == len(reference.redraws.truths)
        and any(not m.met for m in redraw_measures(drawn, reference, criteria.precision))
    }


def _is_weak(canary: torch.Tensor, criteria: TensorCriteria, passes: Accepts) -> bool:
    """Whether the gates are excused for accepting a local canary.

    There are two excuses. The damaged part is below the noise of a low precision, and float32's budgets reject the
    canary. Or it lies behind a kink, where one flipped unit may change it as much in any precision.
    """
    if criteria.kind == "exact":
        return False
    if criteria.reference.kinked:
        return True
    return not criteria.uses_float32_budget and not passes(canary, criteria.at_float32())


def _as_returned(oracle: OracleTensor, y: torch.Tensor) -> torch.Tensor:
    """The oracle's tensor in the dtype of the candidate."""
    if y.is_complex():
        return torch.view_as_complex(oracle.reals.contiguous()).to(y.dtype)
    return oracle.reals.to(y.dtype)


def _norm_rejects(canary: torch.Tensor, criteria: TensorCriteria) -> bool:
    """Whether the norm gate alone rejects a canary, without the cost of the others."""
    oracle = criteria.reference.oracle
    if criteria.kind == "exact" or not oracle.all_finite or tuple(canary.shape) != oracle.shape:
        return False
    return float((flat_reals(canary) - oracle.values).norm()) > criteria.budget.norm

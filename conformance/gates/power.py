"""Tries the canaries on the gates: a gate that accepts a wrong tensor has no power."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from conformance.gates.budget import measures
from conformance.gates.canaries import SMALLEST, SURE, Canary, global_canaries, local_canaries
from conformance.gates.criteria import TensorCriteria
from conformance.gates.distance import Distance
from conformance.gates.dropped_bits import tested_bits
from conformance.records.observation import FP32, OTHER_WEIGHTS

# Foresees whether the gates accept a canary, if its least and its most distance from the oracle leave no doubt.

ROUNDINGS = 8.0  # more than the roundings of a canary to its dtype can move it, in roundings of each element
LOST = 0.5  # of the oracle's square: a canary that loses more is too small for its direction to be certain


def foreseen(canary: Canary, dtype: torch.dtype, criteria: TensorCriteria) -> bool | None:
    """Whether all gates accept a canary, whatever rounding does to it; None if only the gates can tell.

    Args:
        canary: the canary.
        dtype: the dtype in which it would be made.
        criteria: the kind and the budgets of the tensor.
    """
    oracle, limits = criteria.reference.oracle, _limits(dtype)
    if canary.misshapen:
        return False
    if limits is None or not (oracle.is_rounded and oracle.all_finite) or math.isinf(criteria.budget.norm):
        return None
    if not oracle.norm < limits.max / ROUNDINGS:
        return None  # it may overflow
    if _too_far(canary, criteria, limits):
        return False
    return True if _near_enough(canary, dtype, criteria, limits) else None


def _limits(dtype: torch.dtype) -> torch.finfo | None:
    return torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else None


def _rounding(criteria: TensorCriteria, limits: torch.finfo) -> tuple[float, float]:
    """What roundings add to a norm, of numbers as large as the oracle's, and to a number, in units of its size."""
    oracle, unit = criteria.reference.oracle, ROUNDINGS * limits.eps / 2.0
    return unit * oracle.norm + ROUNDINGS * limits.tiny * math.sqrt(oracle.raw.numel()), unit


def _too_far(canary: Canary, criteria: TensorCriteria, limits: torch.finfo) -> bool:
    """Whether a gate surely rejects it."""
    oracle, budget, least = criteria.reference.oracle, criteria.budget, canary.least
    error, unit = _rounding(criteria, limits)
    if least.absolute * (1.0 - unit) - error > SURE * budget.norm:
        return True
    if criteria.kind == "exact" or criteria.is_judged_by_size:
        return False
    k, index = least.axis, least.index
    return (
        (k >= 0 and bool(oracle.slice_norms[k][index] > SURE * budget.slices[k][index]))  # zeros are not rounded
        or least.gain - error / oracle.norm > SURE * budget.gain
        or least.point - unit - ROUNDINGS * limits.tiny / oracle.rms > SURE * budget.point
    )


def _near_enough(canary: Canary, dtype: torch.dtype, criteria: TensorCriteria, limits: torch.finfo) -> bool:
    """Whether all gates surely accept it. Its numbers are finite, and its low bits must not matter."""
    if canary.most is None or criteria.kind == "exact" or criteria.is_judged_by_size or tested_bits(dtype, criteria):
        return False
    oracle, most = criteria.reference.oracle, canary.most()
    error, unit = _rounding(criteria, limits)
    share = error / oracle.norm
    if most.gain > LOST:
        return False
    farther = Distance(
        SURE * most.absolute + error,
        tuple(SURE * far + error for far in most.slices),
        SURE * most.point + unit + ROUNDINGS * limits.tiny / oracle.rms,
        SURE * most.gain + share,
        most.cosine_gap + 4.0 * share,
    )
    return all(measure.met for measure in measures(farther, oracle, criteria.budget))


Accepts = Callable[[torch.Tensor, TensorCriteria], bool]
Foresees = Callable[[Canary, torch.dtype, TensorCriteria], bool | None]


@dataclass(frozen=True)
class Power:
    """What the canaries showed of the gates.

    Attributes:
        accepted: names of canaries that the gates accept and should reject.
        weak: names of local canaries that the gates accept for a reason that excuses them; see `_Trial.is_weak`.
        left_to: see `Discrepancy.left_to`.
        rejected: number of canaries with wrong values, in the right shape and dtype, that the gates reject; at those of
            float32, if these are more.
    """

    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    left_to: str = ""
    rejected: int = 0


def power_of(
    dtype: torch.dtype, criteria: TensorCriteria, every_gate_accepts: Accepts, foresees: Foresees = foreseen
) -> Power:
    """Try all canaries on the gates.

    Args:
        dtype: the dtype of the candidate, which the canaries get.
        criteria: the kind and the budgets of the tensor.
        every_gate_accepts: returns whether all gates accept a canary under some criteria.
        foresees: returns whether they will, if that is certain before the canary is made; otherwise None.
    """
    if criteria.kind == "empty":
        return Power()
    trial = _Trial(dtype, criteria, every_gate_accepts, foresees)
    reference, held_to_float32 = criteria.reference, criteria.uses_float32_budget
    whole = trial.of(global_canaries(dtype, reference, held_to_float32=held_to_float32))
    local = trial.of(local_canaries(reference, criteria.budget))
    passing = [c for c, accepted in (whole | local).items() if accepted]
    rejected = _rejected_over_draws(passing, local, criteria)
    passing = [c for c in passing if c not in rejected]
    caught = sum(not c.misshapen for c in whole | local) - sum(not c.misshapen for c in passing)
    seen = {c.least.axis for c in local if c not in passing}
    weak = [c.name for c in passing if c in local and trial.is_weak(c, seen)]
    accepted = [c.name for c in passing if c in whole]
    accepted += [c.name for c in passing if c in local and c.name not in weak]
    if accepted and criteria.may_be_left_to_float32:
        finely = trial.of(global_canaries(dtype, reference, held_to_float32=True), trial.at_float32)
        if not any(finely.values()):
            caught = max(caught, sum(not c.misshapen for c in finely))
            return Power(weak=tuple(weak), left_to=FP32, rejected=caught)
    if accepted and criteria.reference.kinked and any(map(trial.has_power, criteria.with_other_weights)):
        return Power(weak=tuple(weak), left_to=OTHER_WEIGHTS, rejected=caught)
    return Power(tuple(accepted), tuple(weak), rejected=caught)


class _Trial:
    """The gates of one tensor, and the canaries that are tried on them; for the arguments see `power_of`."""

    def __init__(
        self, dtype: torch.dtype, criteria: TensorCriteria, every_gate_accepts: Accepts, foresees: Foresees
    ) -> None:
        self._dtype, self._criteria = dtype, criteria
        self._accepts, self._foresees = every_gate_accepts, foresees

    @cached_property
    def at_float32(self) -> TensorCriteria:
        """The criteria with float32's budgets."""
        return self._criteria.at_float32()

    @cached_property
    def _truth(self) -> torch.Tensor:
        """The oracle's tensor in the dtype of the candidate."""
        oracle = self._criteria.reference.oracle
        numbers = torch.view_as_complex(oracle.reals.contiguous()) if self._dtype.is_complex else oracle.reals
        return numbers.to(self._dtype)

    def of(self, canaries: Iterable[Canary], criteria: TensorCriteria | None = None) -> dict[Canary, bool]:
        """Those of the canaries that can be made, and whether all gates accept them; at other criteria, if given."""
        held = criteria or self._criteria
        found = {}
        for canary in canaries:
            known = self._foresees(canary, self._dtype, held)
            if known is not None:
                found[canary] = known
            elif (wrong := canary.make(self._truth)) is not None:
                found[canary] = self._accepts(wrong, held)
        return found

    def has_power(self, criteria: TensorCriteria) -> bool:
        """Whether the gates reject every wrong tensor at other criteria, in float32."""
        if self._dtype not in (torch.float32, torch.complex64):
            return False
        other = _Trial(self._dtype, criteria, self._accepts, self._foresees)
        tried = other.of(global_canaries(self._dtype, criteria.reference, held_to_float32=True))
        return bool(tried) and not any(tried.values())

    def is_weak(self, canary: Canary, seen: Collection[int]) -> bool:
        """Whether the gates are excused for accepting a local canary.

        There are three excuses. The damaged part is below the noise of a low precision, and float32's budgets reject
        the canary. It lies behind a kink, where one flipped unit may change it as much in any precision. Or it is the
        smallest slice of an axis, below the noise of its precision, and a slice of median size is seen.

        Args:
            canary: the canary.
            seen: the axes of which the gates reject a slice that is zero.
        """
        if self._criteria.kind == "exact":
            return False
        if self._criteria.reference.kinked or (canary.name.startswith(SMALLEST) and canary.least.axis in seen):
            return True
        return not self._criteria.uses_float32_budget and not any(self.of([canary], self.at_float32).values())


def _rejected_over_draws(canaries: Sequence[Canary], local: Iterable[Canary], criteria: TensorCriteria) -> set[Canary]:
    """Those of the canaries that one draw accepts and all draws together reject."""
    reference, redraws, gate = criteria.reference, criteria.reference.redraws, criteria.over_draws
    if not canaries or gate is None or redraws is None:
        return set()
    truths = redraws.truths[: gate.draws]
    sampled = truths[0].shape != reference.oracle.reals.shape  # in a sample, no slice has its place
    rejected = set()
    for canary in canaries if not sampled else set(canaries) - set(local):
        drawn = [wrong for truth in truths if (wrong := canary.make(truth)) is not None]
        if len(drawn) == len(truths) and not all(m.met for m in gate.measures(drawn)):
            rejected.add(canary)
    return rejected

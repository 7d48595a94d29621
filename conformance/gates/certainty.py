"""Decides without making a canary that the gates reject it, if its least distance from the oracle leaves no doubt."""

from __future__ import annotations

import math

import torch

from conformance.gates.canaries import Canary
from conformance.gates.criteria import TensorCriteria

ROUNDINGS = 8.0  # more than the roundings of a canary to its dtype can move it, in roundings of each element
SURE = 1.0 + 1e-9  # more than sums in another order differ


def surely_rejected(canary: Canary, dtype: torch.dtype, criteria: TensorCriteria) -> bool:
    """Whether the gates reject a canary whatever rounding does to it. False says nothing: the gates must be asked.

    Args:
        canary: the canary.
        dtype: the dtype in which it would be made.
        criteria: the kind and the budgets of the tensor.
    """
    oracle, budget, least = criteria.reference.oracle, criteria.budget, canary.least
    if canary.misshapen:
        return True
    if not (dtype.is_floating_point or dtype.is_complex) or not (oracle.is_rounded and oracle.all_finite):
        return False
    limits = torch.finfo(dtype)
    if not oracle.norm < limits.max / ROUNDINGS or math.isinf(budget.norm):
        return False  # it may overflow, or there is no budget
    unit = ROUNDINGS * limits.eps / 2.0
    error = unit * oracle.norm + ROUNDINGS * limits.tiny * math.sqrt(oracle.raw.numel())
    if least.absolute * (1.0 - unit) - error > SURE * budget.norm:
        return True
    if criteria.kind in ("exact", "null"):
        return False
    return (
        _slice_is_lost(canary, criteria)
        or least.gain - error / oracle.norm > SURE * budget.gain
        or least.point - unit - ROUNDINGS * limits.tiny / oracle.rms > SURE * budget.point
    )


def _slice_is_lost(canary: Canary, criteria: TensorCriteria) -> bool:
    """Whether the slice that is zero is louder than its budget: a zero is not rounded."""
    k, index = canary.least.axis, canary.least.index
    return k >= 0 and bool(criteria.reference.oracle.slice_norms[k][index] > SURE * criteria.budget.slices[k][index])

"""Foresees whether the gates accept a canary, if its least and its most distance from the oracle leave no doubt."""

from __future__ import annotations

import math

import torch

from conformance.gates.budget import measures
from conformance.gates.canaries import SURE, Canary
from conformance.gates.criteria import TensorCriteria
from conformance.gates.distance import Distance
from conformance.gates.dropped_bits import tested_bits

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

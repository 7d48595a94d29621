"""Compares one tensor of a candidate with the oracle's: the measure of every gate, and which canaries they reject."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from conformance.gates import budget, distance
from conformance.gates.budget import TensorCriteria
from conformance.gates.dropped_bits import precision_measure
from conformance.gates.power import Power, power_of
from conformance.records.cell import FP32, Discrepancy, Measure
from conformance.verdict import failed_gate

ABSENT = "None"


def compare(
    y: torch.Tensor | None,
    criteria: TensorCriteria,
    again: torch.Tensor | None,
    fault: str,
    drawn: Sequence[torch.Tensor | None] = (),
) -> Discrepancy:
    """Measure a candidate by every gate, try the canaries, and compare it with a second call.

    Args:
        y: the candidate's tensor; None if the model returned none.
        criteria: the kind and the budgets of the tensor.
        again: the same tensor of an identical second call, if there is one.
        fault: what is wrong with the tensor apart from its values, such as its device; "" for nothing.
        drawn: the tensor in further draws of the case, as `distance.sample` gives it; empty if it is not judged so.
    """
    found = compare_values(y, criteria, fault, drawn)
    if y is None or fault:
        return found
    measures = found.measures
    if again is not None and measures[0].met:
        measures = (*measures, _stability(y, again, criteria))
    power = power_of(y.dtype, criteria, partial(accepts, dtype=name_of(y.dtype))) if measures[0].met else Power()
    if power.left_to == FP32 and all(m.met for m in measures_of(y, criteria.at_float32())):
        power = replace(power, left_to="")  # it has passed gates that reject every canary
    return replace(found, measures=measures, **vars(power), closer=_closer(found.measures, criteria))


def _closer(measures: Sequence[Measure], criteria: TensorCriteria) -> bool | None:
    """See `Discrepancy.closer`."""
    norm = next((m for m in measures if m.gate == "norm"), None)
    if norm is None or criteria.beside is None or criteria.is_judged_by_size:
        return None
    return norm.value < criteria.beside.absolute / criteria.reference.oracle.norm


def compare_values(
    y: torch.Tensor | None, criteria: TensorCriteria, fault: str, drawn: Sequence[torch.Tensor | None] = ()
) -> Discrepancy:
    """As `compare`, without canaries and without a second call."""
    if y is None or fault:
        missing = Measure("structure", math.inf, 0.0, fault or "None, where the oracle has a tensor")
        dtype = ABSENT if y is None else name_of(y.dtype)
        return Discrepancy(criteria.case, criteria.tensor, "absent", dtype, criteria.dtype, (missing,))
    measures = measures_of(y, criteria, drawn)
    return Discrepancy(criteria.case, criteria.tensor, criteria.kind, name_of(y.dtype), criteria.dtype, measures)


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def measures_of(
    y: torch.Tensor, criteria: TensorCriteria, drawn: Sequence[torch.Tensor | None] = ()
) -> tuple[Measure, ...]:
    """The measure of every gate, the structure first. If the shape is wrong, there are no others."""
    oracle = criteria.reference.oracle
    if tuple(y.shape) != oracle.shape:
        return (Measure("structure", math.inf, 0.0, f"shape {tuple(y.shape)}, the oracle's is {oracle.shape}"),)
    if y.is_complex() != oracle.raw.is_complex():
        other = f"{name_of(y.dtype)}, the oracle's is {name_of(oracle.raw.dtype)}"
        return (Measure("structure", math.inf, 0.0, other),)
    structure = Measure("structure", 0.0, 0.0)
    if criteria.kind == "empty":
        return (structure,)
    if criteria.kind == "exact":
        return (structure, _exact(y, criteria))
    values = budget.measures(oracle.distance(y), oracle, criteria.budget)
    over_draws = criteria.over_draws.measures(drawn) if criteria.over_draws and drawn else ()
    return (structure, _classes(y, criteria), *values, *over_draws, *precision_measure(y, criteria))


def accepts(y: torch.Tensor, criteria: TensorCriteria, dtype: str) -> bool:
    """Whether every gate accepts a tensor that should have a dtype of that name."""
    return failed_gate(replace(compare_values(y, criteria, ""), dtype_asked=dtype)) is None


def _exact(y: torch.Tensor, criteria: TensorCriteria) -> Measure:
    """Whether all elements are equal; for integers, those whose value no perturbed run changes."""
    oracle = criteria.reference.oracle
    y = y.detach().cpu()
    wanted = oracle.raw.to(y.dtype)
    differs = (y != wanted) & ~(y.isnan() & wanted.isnan())
    settled = criteria.reference.settled.get(criteria.cell_precision.name)
    if settled is not None:
        differs &= settled
    count = int(differs.sum())
    if not count:
        return Measure("exact", 0.0, 0.0)
    first = oracle.index(int(differs.flatten().to(torch.uint8).argmax()))
    return Measure("exact", count, 0.0, f"{count} of {differs.numel()} elements differ, the first at {first}")


def _classes(y: torch.Tensor, criteria: TensorCriteria) -> Measure:
    """Whether every element is finite, +inf, −inf or NaN like the oracle's.

    An infinity is accepted if the oracle's element is near the largest number of the dtype.
    """
    oracle = criteria.reference.oracle
    if oracle.all_finite and distance.all_finite(distance.real_numbers(y)):
        return Measure("class", 0.0, 0.0)
    reals, wanted = distance.flat_reals(y), oracle.reals
    same = (reals.isfinite() & wanted.isfinite()) | (reals.isnan() & wanted.isnan()) | (reals == wanted)
    if y.dtype.is_floating_point or y.dtype.is_complex:
        edge = (1.0 - 8.0 * criteria.precision.unit) * torch.finfo(y.dtype).max
        beyond = (wanted.abs() >= edge) & ~wanted.isnan()
        same |= beyond & (reals.sign() == wanted.sign()) & ~reals.isnan()
    count = int((~same).sum())
    if not count:
        return Measure("class", 0.0, 0.0)
    at = int((~same).flatten().to(torch.uint8).argmax())
    got, want = float(reals.flatten()[at]), float(wanted.flatten()[at])
    return Measure("class", math.inf, 0.0, f"element {oracle.index(at)} is {got:.4g}, the oracle's {want:.4g}")


def _stability(y: torch.Tensor, again: torch.Tensor, criteria: TensorCriteria) -> Measure:
    if y.shape != again.shape or y.dtype != again.dtype:
        return Measure("stable", math.inf, 0.0, f"{name_of(again.dtype)} of shape {tuple(again.shape)}")
    if distance.same_bytes(y, again):
        return Measure("stable", 0.0, 0.0)
    one, other = distance.flat_reals(y), distance.flat_reals(again)
    alike = (one == other) | (one.isnan() & other.isnan())
    gap = float((one - other).where(~alike, 0.0).norm())
    most = 0.0 if criteria.bitwise else criteria.budget.norm
    return Measure("stable", math.inf if math.isnan(gap) else gap, most)

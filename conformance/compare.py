"""Holds one tensor of a candidate against its bounds: every gate's measure, and the canaries' fate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance import budget
from conformance.axes import PRECISIONS, Precision
from conformance.budget import Allowance, Bounds
from conformance.canaries import SMALLEST, global_canaries, local_canaries
from conformance.discrepancy import Yardstick, dropped_bits_share, flat_reals
from conformance.evaluation import same_bytes
from conformance.judge import failed_gate
from conformance.records import Discrepancy, Measure

ABSENT = "None"


@dataclass(frozen=True)
class Ruler:
    """One tensor's bounds in one cell: what it is held to.

    Attributes:
        case, tensor: names.
        bounds: from the reference.
        kind: see `Discrepancy.kind`.
        precision: whose budgets hold; float32's where eager reaches them in a low cell.
        cell_precision: the cell's own.
        allowed: the budgets.
        dtype: asked by the contract, "" where none is.
        baseline: eager at the same precision; None in eager cells.
        bitwise: identical calls must agree bit for bit.
    """

    case: str
    tensor: str
    bounds: Bounds
    kind: str
    precision: Precision
    cell_precision: Precision
    allowed: Allowance
    dtype: str
    baseline: torch.Tensor | None
    bitwise: bool


def ruler(  # noqa: PLR0913 -- a record's fields
    case: str,
    tensor: str,
    bounds: Bounds,
    precision: Precision,
    *,
    dtype: str,
    baseline: torch.Tensor | None,
    accurate: bool,
    bitwise: bool,
) -> Ruler:
    """Class the tensor and fix its budgets, before the candidate is looked at."""
    yardstick = bounds.yardstick
    usable = baseline is not None and baseline.shape == yardstick.shape
    beside = yardstick.distance(baseline) if usable and baseline is not None else None
    held_to = precision
    if not yardstick.oracle.numel():
        kind = "empty"
    elif bounds.exact or not yardstick.is_rounded:
        kind = "exact"
    elif bounds.is_null:
        kind, held_to = "null", budget.FLOAT32 if accurate else precision
    else:
        low = bool(precision.autocast)  # whether a kernel takes TF32 is its own choice, which nothing else need follow
        reaches = accurate or (low and beside is not None and budget.holds_float32(beside, bounds, precision))
        kind, held_to = ("float32", budget.FLOAT32) if low and reaches else ("rounded", precision)
    allowed = Allowance(0.0, (), 0.0, 0.0)
    if kind not in ("empty", "exact"):
        allowed = budget.allowance(bounds, held_to, None)
        if beside is not None and all(m.met for m in budget.measures(beside, yardstick, allowed)):
            allowed = budget.allowance(bounds, held_to, beside)  # eager that fails its own budget excuses nothing
    beside_it = baseline if usable else None
    return Ruler(case, tensor, bounds, kind, held_to, precision, allowed, dtype, beside_it, bitwise)


def compare(y: torch.Tensor | None, held: Ruler, again: torch.Tensor | None, fault: str) -> Discrepancy:
    """Measure a candidate by every gate, let the canaries try them, and compare it with a second call.

    Args:
        y: the candidate's tensor; None where the model returned none.
        held: what it is held to.
        again: the same tensor of an identical second call.
        fault: what is wrong with it beside its values, "" for nothing.
    """
    if y is None or fault:
        missing = Measure("structure", math.inf, 0.0, fault or "None, where the oracle has a tensor")
        dtype = ABSENT if y is None else name_of(y.dtype)
        return Discrepancy(held.case, held.tensor, "absent", dtype, held.dtype, (missing,))
    measures = _measures(y, held)
    if again is not None and measures[0].met:
        measures = (*measures, _stability(y, again, held))
    power = _try_canaries(y, held) if measures[0].met else Power()
    closer = None
    if held.baseline is not None and held.kind in ("rounded", "float32") and measures[0].met:
        yardstick = held.bounds.yardstick
        closer = yardstick.distance(y).absolute < yardstick.distance(held.baseline).absolute
    return Discrepancy(
        held.case,
        held.tensor,
        held.kind,
        name_of(y.dtype),
        held.dtype,
        measures,
        **vars(power),
        closer=closer,
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _measures(y: torch.Tensor, held: Ruler) -> tuple[Measure, ...]:
    wanted = held.bounds.yardstick.shape
    if tuple(y.shape) != wanted:
        return (Measure("structure", math.inf, 0.0, f"shape {tuple(y.shape)}, the oracle's is {wanted}"),)
    structure = Measure("structure", 0.0, 0.0)
    if held.kind == "empty":
        return (structure,)
    yardstick = held.bounds.yardstick
    if held.kind == "exact":
        return (structure, _exact(y, held))
    values = budget.measures(yardstick.distance(y), yardstick, held.allowed)
    return (structure, _classes(y, held), *values, *_precision(y, held))


def _exact(y: torch.Tensor, held: Ruler) -> Measure:
    """Equal everywhere; for integers, wherever no probe changes the oracle's value."""
    yardstick = held.bounds.yardstick
    y = y.detach().cpu()
    wanted = yardstick.raw.to(y.dtype)
    differs = (y != wanted) & ~(y.isnan() & wanted.isnan())
    settled = held.bounds.settled.get(held.cell_precision.name)
    if settled is not None:
        differs &= settled
    count = int(differs.sum())
    if not count:
        return Measure("exact", 0.0, 0.0)
    first = yardstick.index(int(differs.flatten().to(torch.uint8).argmax()))
    return Measure("exact", count, 0.0, f"{count} of {differs.numel()} elements differ, the first at {first}")


def _classes(y: torch.Tensor, held: Ruler) -> Measure:
    """Finite, +inf, −inf or NaN as the oracle; inf is fine where the oracle is at the dtype's edge."""
    yardstick = held.bounds.yardstick
    reals = flat_reals(y)
    wanted = yardstick.oracle
    if yardstick.all_finite and bool(reals.isfinite().all()):
        return Measure("class", 0.0, 0.0)
    same = (reals.isfinite() & wanted.isfinite()) | (reals.isnan() & wanted.isnan()) | (reals == wanted)
    if y.dtype.is_floating_point or y.dtype.is_complex:
        edge = (1.0 - 8.0 * held.precision.unit) * torch.finfo(y.dtype).max
        beyond = (wanted.abs() >= edge) & ~wanted.isnan()
        same |= beyond & (reals.sign() == wanted.sign()) & ~reals.isnan()
    count = int((~same).sum())
    if not count:
        return Measure("class", 0.0, 0.0)
    at = int((~same).flatten().to(torch.uint8).argmax())
    got, want = float(reals.flatten()[at]), float(wanted.flatten()[at])
    return Measure("class", math.inf, 0.0, f"element {yardstick.index(at)} is {got:.4g}, the oracle's {want:.4g}")


def _precision(y: torch.Tensor, held: Ruler) -> tuple[Measure, ...]:
    """Whether a float32 tensor carries bits that only a trip through fewer would have cleared."""
    if y.dtype not in (torch.float32, torch.complex64) or held.kind == "null":
        return ()
    tests = {p.autocast: p.dropped_bits for p in PRECISIONS.values() if p.dropped_bits}
    least = 2  # elements: by chance 13 bits are zero in one of 8192
    if held.kind != "float32" and held.cell_precision.autocast == "float16":
        del tests["float16"]
        least = 7  # of float16's own roundings one in 8 has the three bits more that bfloat16 drops
    elif held.kind != "float32" and held.cell_precision.autocast:
        return ()
    found = []
    for name, bits in tests.items():
        share = dropped_bits_share(y, held.bounds.yardstick, bits, least)
        share = 0.0 if math.isnan(share) else share
        detail = f"{share:.0%} of its elements went through {name}"
        found.append(Measure("precision", share, math.nextafter(budget.DROPPED_SHARE, 0), detail))
    return (max(found, key=lambda m: m.value),)


def _stability(y: torch.Tensor, again: torch.Tensor, held: Ruler) -> Measure:
    if y.shape != again.shape or y.dtype != again.dtype:
        return Measure("stable", math.inf, 0.0, f"{name_of(again.dtype)} of shape {tuple(again.shape)}")
    if same_bytes(y, again):
        return Measure("stable", 0.0, 0.0)
    one, other = flat_reals(y), flat_reals(again)
    alike = (one == other) | (one.isnan() & other.isnan())
    gap = float((one - other).where(~alike, 0.0).norm())
    return Measure("stable", math.inf if math.isnan(gap) else gap, 0.0 if held.bitwise else held.allowed.norm)


@dataclass(frozen=True)
class Power:
    """What the canaries showed of the gates.

    Attributes:
        accepted: canaries that got through and should not have.
        weak: local ones that tell of the numbers and not of the gates, see `_is_weak`.
        unresolved: this low precision cannot tell the tensor from a wrong one, float32's budgets can.
    """

    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    unresolved: bool = False


def _try_canaries(y: torch.Tensor, held: Ruler) -> Power:
    if held.kind == "empty":
        return Power()
    oracle = _as_returned(held.bounds.yardstick, y)
    is_fine = held.precision.name == budget.FLOAT32.name
    whole = dict(global_canaries(oracle, held.bounds, fine=is_fine))
    accepted = [name for name, z in whole.items() if _passes(z, y, held)]
    local = {n: z for n, z in local_canaries(oracle, held.bounds, held.allowed) if _passes(z, y, held)}
    weak = [name for name, z in local.items() if _is_weak(name, z, y, held)]
    accepted += [name for name in local if name not in weak]
    if accepted and held.kind == "rounded" and not is_fine:
        finely = _at_float32(held)
        whole |= dict(global_canaries(oracle, held.bounds, fine=True))
        if not any(_passes(z, y, finely) for z in whole.values()):
            return Power(weak=tuple(weak), unresolved=True)
    return Power(tuple(accepted), tuple(weak))


def _is_weak(name: str, canary: torch.Tensor, y: torch.Tensor, held: Ruler) -> bool:
    """Whether accepting a local canary tells of the numbers and not of the gates.

    A part below a low precision's noise that float32's budgets do see; or, behind a kink, the smallest
    slice, which one flipped unit may make or unmake in any precision.
    """
    if held.kind == "exact":
        return False
    if held.bounds.kinked and name.startswith(SMALLEST):
        return True
    return held.precision.name != budget.FLOAT32.name and not _passes(canary, y, _at_float32(held))


def _as_returned(yardstick: Yardstick, y: torch.Tensor) -> torch.Tensor:
    oracle = yardstick.oracle
    if y.is_complex():
        return torch.view_as_complex(oracle.contiguous()).to(y.dtype)
    return oracle.to(y.dtype)


def _at_float32(held: Ruler) -> Ruler:
    allowed = budget.allowance(held.bounds, budget.FLOAT32, None)
    return Ruler(**{**vars(held), "precision": budget.FLOAT32, "allowed": allowed})


def _passes(canary: torch.Tensor, y: torch.Tensor, held: Ruler) -> bool:
    """Whether every gate lets a canary through."""
    yardstick = held.bounds.yardstick
    if held.kind != "exact" and yardstick.all_finite and tuple(canary.shape) == yardstick.shape:
        gap = float((flat_reals(canary) - yardstick.values).norm())
        if gap > held.allowed.norm:
            return False  # the norm gate alone, without the cost of the others
    asked, found = name_of(y.dtype), name_of(canary.dtype)
    return failed_gate(Discrepancy(held.case, held.tensor, held.kind, found, asked, _measures(canary, held))) is None

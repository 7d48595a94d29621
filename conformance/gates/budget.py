"""Computes the budget of each measure from the spread of the oracle's perturbed runs. All constants are here.

`docs/method.md` gives the reason and the evidence for each constant. The criteria for a tensor of a cell, its kind and
its budgets, in one draw of a case and in several, are fixed before the candidate is seen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.gates import distance
from conformance.gates.distance import Distance, OracleTensor, Redraws, Rounded, Sums
from conformance.records.cell import Measure, TensorName

NOISE = 4.0  # unit roundoffs by which perturbed runs move numbers; enough to flip a unit that a correct run may flip
SMOOTH_NOISE = 2.0  # the same for low precisions if the model has no kink
NORM_FACTOR = 1.5
SLICE_FACTOR = 2.0
KINKED_SLICE_FACTOR = 4.0  # one flipped unit moves one slice more than it moves the tensor
POINT_FACTOR = 2.0
GAIN_FACTOR = 2.0
NOISE_FACTOR = 4.0  # instead of the factors above, if perturbed runs move a tensor by its own size: few show its tail
ANGLE_FACTOR = 2.0  # underflow may turn a gradient by any angle, or leave zeros
NULL_FACTOR = 8.0
BASELINE_NORM_FACTOR = 2.0  # times eager's own error, in cells that are not eager
BASELINE_FACTOR = 4.0
FLOAT32 = PRECISIONS["fp32"]
NOISY = 2.0**30 * NOISE * FLOAT32.unit  # with this relative spread, a tensor is all noise, also in float64
DROPPED_SHARE = 0.9
NORM_CAP = 0.5  # above it the angle is checked too, as zeros, with an error of 1, almost pass; and a draw strays freely
MIN_DIRECTION_ELEMENTS = 8  # elements; with fewer, the direction of a tensor means little


@dataclass(frozen=True)
class Budget:
    """The budgets of one tensor at one precision, in the units of `Distance`.

    Attributes:
        norm: bound of ‖y − y*‖ for the whole tensor, absolute.
        slices: for each of the oracle's axes, the same bound for every index: float64, of the axis's length.
        gain: bound of `Distance.gain`; infinite if only the size of the tensor is judged.
        point: bound of `Distance.point`.
        cosine_gap: bound of 1 − cos of the angle; infinite unless `norm` is above `NORM_CAP` times the oracle's norm.
    """

    norm: float
    slices: tuple[torch.Tensor, ...]
    gain: float
    point: float
    cosine_gap: float = math.inf


@dataclass(frozen=True)
class TensorReference:
    """The reference of one tensor, made before any candidate runs.

    Attributes:
        oracle: the oracle's tensor.
        spread: the farthest distance of any perturbed run, by precision name.
        exact: all perturbed runs equal the oracle bit for bit, since no op that rounds touched the tensor.
        settled: for integers and booleans, a boolean mask of the elements that no perturbed run changes, by precision
            name.
        kinked: the model ran an op with a kink.
        scale: the scale of the cotangents where a precision has one; 1 for tensors that do not depend on it.
        strayed: the largest absolute sums over the errors of any perturbed run, by the name of a low precision.
        redraws: the tensor in further draws of the case; None if it is not judged over draws.
        is_remainder: it is a gradient that is left where larger terms cancel, and float32 holds little of it.
    """

    oracle: OracleTensor
    spread: dict[str, Distance]
    exact: bool
    settled: dict[str, torch.Tensor]
    kinked: bool
    scale: float
    strayed: dict[str, Sums] = field(default_factory=dict)
    redraws: Redraws | None = None
    is_remainder: bool = False

    @property
    def is_null(self) -> bool:
        """Whether only its size is judged: it is what cancellation leaves, in float64 only noise or in float32."""
        norm, spread = self.oracle.norm, self.spread["fp32"].absolute
        return norm == 0.0 or spread / norm >= NOISY or self.is_remainder

    def quantum(self, precision: Precision) -> float:
        """The smallest number of the tensor at a precision."""
        return precision.quantum / self.scale if precision.is_scaled else precision.quantum

    def null_slices(self, axis: int) -> torch.Tensor:
        """For every index of the axis at that place in `oracle.axes`, whether its slice is structurally zero."""
        norms, spread = self.oracle.slice_norms[axis], self.spread["fp32"].slices[axis]
        return (norms == 0.0) | (spread / norms >= NOISY)


def gain_floor(precision: Precision) -> float:
    """What constants that are rounded once, such as 1 − momentum, may change a gain; a cast model has narrow ones."""
    return precision.unit if precision.cast else NOISE * FLOAT32.unit


def budget_for(reference: TensorReference, precision: Precision, baseline: Distance | None = None) -> Budget:
    """The budgets of a candidate at a precision, widened by the distance of eager there; None in eager cells."""
    oracle, spread = reference.oracle, reference.spread[precision.name]
    floor = 2.0 * reference.quantum(precision)  # the error of one element from underflow
    count = math.prod(oracle.sizes)
    if reference.is_null:
        beside = BASELINE_FACTOR * baseline.absolute if baseline else 0.0
        return Budget(max(NULL_FACTOR * spread.absolute, beside), (), math.inf, math.inf)
    factors = NORM_FACTOR, KINKED_SLICE_FACTOR if reference.kinked else SLICE_FACTOR, GAIN_FACTOR, POINT_FACTOR
    if spread.absolute >= oracle.norm:
        factors = (NOISE_FACTOR,) * 4
    of_norm, of_slice, of_gain, of_point = factors
    norm = of_norm * max(spread.absolute, precision.unit * oracle.norm) + floor * math.sqrt(count)
    gain = max(of_gain * spread.gain, gain_floor(precision)) + floor / oracle.rms
    point = of_point * max(spread.point, precision.unit) + floor / oracle.rms
    share = max(spread.absolute / oracle.norm, precision.unit)
    slices = tuple(
        of_slice * torch.maximum(_strays(reference, precision, axis), share * norms)
        + floor * math.sqrt(count / norms.numel())
        for axis, norms in enumerate(oracle.slice_norms)
    )
    cosine_gap = math.inf
    if norm > NORM_CAP * oracle.norm and count >= MIN_DIRECTION_ELEMENTS:
        cosine_gap = 1.0 - 0.5 / math.hypot(1.0, norm / oracle.norm)  # half the cosine that noise of this size leaves
        cosine_gap = max(cosine_gap, ANGLE_FACTOR * spread.cosine_gap)
    if baseline is None:
        return Budget(norm, slices, gain, point, cosine_gap)
    share = baseline.absolute / oracle.norm
    return Budget(
        max(norm, BASELINE_NORM_FACTOR * baseline.absolute),
        tuple(
            torch.maximum(most, BASELINE_FACTOR * torch.maximum(own, share * norms))
            for most, own, norms in zip(slices, baseline.slices, oracle.slice_norms, strict=True)
        ),
        max(gain, GAIN_FACTOR * baseline.gain),
        max(point, BASELINE_FACTOR * baseline.point),
        cosine_gap,
    )


def _strays(reference: TensorReference, precision: Precision, axis: int) -> torch.Tensor:
    """How far each slice of an axis strayed; some slices share the farthest of them.

    Those that strayed by their own size do: such noise is a product of the noise of many layers, and a few runs do not
    show how far it goes. So do those that are zero behind a kink. They belong to units that are off: of a thousand, a
    low precision switches some on that no perturbed run did.
    """
    norms, far = reference.oracle.slice_norms[axis], reference.spread[precision.name].slices[axis]
    noisy, off = (far >= norms) & ~reference.null_slices(axis), (norms == 0.0) & reference.kinked
    for alike in (noisy, off):
        far = torch.where(alike, far[alike].max(), far) if bool(alike.any()) else far
    return far


def measures(y: Distance, oracle: OracleTensor, budget: Budget) -> tuple[Measure, ...]:
    """The measures of the gates norm, slice, gain and pointwise, from the distance of a candidate.

    A tensor that is structurally zero, or what cancellation leaves, has only one: its absolute norm.
    The angle to the oracle rejects zeros and the negative if rounding may move a tensor by its own size.
    """
    if math.isinf(budget.gain):
        return (Measure("norm", y.absolute, budget.norm, "what cancellation leaves, so absolute"),)
    where = oracle.index(y.worst)
    angle = Measure("gain", y.cosine_gap, budget.cosine_gap, "of the angle to the oracle, 1 − cos")
    return (
        Measure("norm", y.absolute / oracle.norm, budget.norm / oracle.norm),
        *_worst_slice(y, oracle, budget),
        Measure("gain", y.gain, budget.gain),
        *(() if math.isinf(budget.cosine_gap) else (angle,)),
        Measure("pointwise", y.point, budget.point, f"element {where}" if where else ""),
    )


def _worst_slice(y: Distance, oracle: OracleTensor, budget: Budget) -> tuple[Measure, ...]:
    worst, found = -1.0, ()  # type: tuple[float, tuple[Measure, ...]]
    for k, axis in enumerate(oracle.axes):
        ratio = (y.slices[k] / budget.slices[k]).nan_to_num(0.0, posinf=math.inf)  # 0/0: no error allowed, none found
        index = int(ratio.argmax())
        if float(ratio[index]) > worst:
            worst = float(ratio[index])
            norm = float(oracle.slice_norms[k][index]) or 1.0
            error, most = float(y.slices[k][index]) / norm, float(budget.slices[k][index]) / norm
            found = (Measure("slice", error, most, f"slice {index} of axis {axis}"),)
    return found


def holds_float32(baseline: Distance, reference: TensorReference, precision: Precision) -> bool:
    """Whether eager, at this distance, computed a tensor in float32, although the cell's precision is low."""
    spread, norm = reference.spread["fp32"], reference.oracle.norm
    far = max(precision.unit * norm, reference.spread[precision.name].absolute)
    # Where a unit that flips has moved float32's runs, eager is within them by chance.
    most = math.sqrt(FLOAT32.unit / precision.unit) if reference.kinked else 1 / 8
    if spread.absolute > most * far:
        return False
    spread_alone = Budget(
        max(spread.absolute, FLOAT32.unit * norm),
        tuple(
            torch.maximum(strayed, max(spread.absolute / norm, FLOAT32.unit) * norms)
            for strayed, norms in zip(spread.slices, reference.oracle.slice_norms, strict=True)
        ),
        math.nextafter(math.inf, 0),
        max(spread.point, FLOAT32.unit),
    )
    return all(m.met for m in measures(baseline, reference.oracle, spread_alone) if m.gate != "gain")


# Judges one tensor over several draws of a case.
# The budgets come from rounded runs: the oracle, with the result of every op rounded to nearest at the cell's
# precision. An honest mode rounds no more often than that.

BIAS_FACTOR = 2.0
SUM_NOISE_FACTOR = 5.0  # standard deviations
SUM_SHARE = 0.4  # of the farthest sum over a perturbed run; the noise is at least this much
WORSE = 2.0  # a draw is worse conditioned if its rounded run strays so many times as far as the median one
ERROR_SHARE = 0.8  # of the error of the worst perturbed run, if the errors of elements are independent; the same


def budgets_over_draws(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """The budgets of the absolute sums over the draws of a candidate.

    They are infinite for slices that are all noise, and where a rounded run has no number.
    """
    underflow = 2.0 * reference.quantum(precision)  # the error of one element
    counts = rounded.draws * _counts(reference)
    size, constants = (counts * rounded.squares).sqrt(), gain_floor(precision)
    least, flips = _least_noise(reference, precision, rounded), _flips(reference, precision, rounded)
    gain = (
        BIAS_FACTOR * rounded.bias.gain
        + SUM_NOISE_FACTOR * rounded.noise.gain.maximum(least.gain)
        + constants * rounded.squares
        + underflow * size
        + flips.gain
    )
    shift = (
        BIAS_FACTOR * rounded.bias.shift
        + SUM_NOISE_FACTOR * rounded.noise.shift.maximum(least.shift)
        + constants * size
        + underflow * counts
        + flips.shift
    )
    gain, shift = (each.masked_fill(_noisy(reference, rounded), math.inf) for each in (gain, shift))
    return Sums(gain.nan_to_num(math.inf, posinf=math.inf), shift.nan_to_num(math.inf, posinf=math.inf))


def _noisy(reference: TensorReference, rounded: Rounded) -> torch.Tensor:
    """Which sums are of slices that are structurally zero in every draw, and hold the noise of float64: boolean.

    A rounded run rounds what a fused op returns. The noise of a low precision inside that op is larger by far.
    """
    sizes = (rounded.squares / rounded.draws).sqrt()
    noisy = torch.zeros_like(sizes, dtype=torch.bool)
    if len(sizes) > 1:  # the tensor is whole, not a sample
        noisy[1:] = torch.cat(reference.spread["fp32"].slices) / sizes[1:] >= NOISY
    return noisy


def _least_noise(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """A lower bound of the noise, from the perturbed runs of the first draw: few rounded runs may show too little."""
    sums, share = _sum_strays(reference, precision, rounded), _share(reference, precision)
    of_sums, of_error = SUM_SHARE, ERROR_SHARE * share
    if reference.kinked:  # these runs are perturbed twice as much
        of_sums, of_error = of_sums / 2, of_error / 2
    return Sums(
        torch.maximum(of_sums * sums.gain, of_error * rounded.crowding / _counts(reference).sqrt()),
        torch.maximum(of_sums * sums.shift, of_error * rounded.squares.sqrt()),
    )


def _flips(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """What flipped units may add to a slice: it may belong to a unit that is on in few draws, or in none."""
    if not reference.kinked:
        return Sums(torch.zeros(()), torch.zeros(()))
    share = KINKED_SLICE_FACTOR * _share(reference, precision)
    crowding, squares = (_of_typical_slices(sums, reference) for sums in (rounded.crowding, rounded.squares))
    gain, shift = share * (rounded.crowding * crowding).sqrt(), share * (_counts(reference) * squares).sqrt()
    gain[0] = shift[0] = 0.0  # the whole tensor
    return Sums(gain, shift)


def _of_typical_slices(sums: torch.Tensor, reference: TensorReference) -> torch.Tensor:
    """Sums of slices, each at least as large as the mean of its axis."""
    lengths = distance.sizes_of_axes(distance.sample(reference.oracle.reals))
    typical = [of_axis.mean().expand_as(of_axis) for of_axis in sums[1:].split(lengths)]
    return sums.maximum(torch.cat([sums[:1], *typical]))


def _share(reference: TensorReference, precision: Precision) -> float:
    """The error of the worst perturbed run, relative to the tensor."""
    return reference.spread[precision.name].absolute / reference.oracle.norm


def _sum_strays(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """How far the sums stray if every draw does so relatively as far as the perturbed runs of the first draw."""
    first = distance.parts(distance.sample(reference.oracle.values).square())
    root = math.sqrt(rounded.draws)
    gain, shift = rounded.crowding / first, (rounded.squares / first).sqrt()
    sums = reference.strayed[precision.name]
    return Sums(sums.gain * gain.nan_to_num(root, posinf=root), sums.shift * shift.nan_to_num(root, posinf=root))


def _counts(reference: TensorReference) -> torch.Tensor:
    """How many numbers of one draw each sum adds up."""
    return distance.parts(torch.ones_like(distance.sample(reference.oracle.reals)))


class OverDraws:
    """The gate of one tensor over all its draws at the precision of a cell, at which its reference has redraws."""

    def __init__(self, reference: TensorReference, precision: Precision) -> None:
        assert reference.redraws is not None
        self._reference, self._precision, self._truths = reference, precision, reference.redraws.truths
        self._rounded = reference.redraws.rounded[precision.name]
        self.draws = self._rounded.draws
        self._budgets = budgets_over_draws(reference, precision, self._rounded)
        self._size = (self.draws * _counts(reference) * self._rounded.squares).sqrt()

    def measures(self, found: Sequence[torch.Tensor | None]) -> tuple[Measure, ...]:
        """The measures of a candidate, sampled in each draw: the gain of the tensor, and the worst other sum."""
        draws, squares, allowed = self.draws, self._rounded.squares, self._budgets
        pairs = zip(found[:draws], self._truths, strict=False)
        there = [y for y, truth in pairs if y is not None and y.shape == truth.shape]
        if len(there) < draws:
            lost = f"absent or of another shape in {draws - len(there)} further draws"
            return (Measure("gain", math.inf, 0.0, lost),)
        sums = distance.sums_of(there, self._truths)
        if not _within(sums, allowed):
            sums = self._without_farthest(there, sums)
        over = f"over {draws} draws"
        square = float(squares[0]) or 1.0
        whole = Measure("gain", abs(float(sums.gain[0])) / square, float(allowed.gain[0]) / square, over)
        worst = _worst(sums.gain, allowed.gain, squares, "gain of", self._reference)
        shifted = _worst(sums.shift, allowed.shift, self._size, "mean error of", self._reference)
        most = shifted if shifted.margin > worst.margin else worst
        return (whole, Measure("gain", most.value, most.budget, f"{most.detail}, {over}"))

    def _without_farthest(self, found: Sequence[torch.Tensor], sums: Sums) -> Sums:
        """The sums without the farthest draw, if its model or its rounded run is a reason that it strays.

        A unit that flips in one draw, and in its rounded run did not, may outweigh the roundings of all draws: behind a
        kink, it may be as far as the first draw may. So may a draw that is worse conditioned, such as a norm of small
        numbers: it may be as many times as far as its rounded run strays farther than the median one. If runs move
        the tensor by half its size, they do not show how far the next one strays: near a pole, such as a division by
        a sum of activations, it has no bound. A wrong factor or constant is in each draw, and so in the others too.
        """
        pairs = zip(found, self._truths, strict=False)
        each = [distance.sums_of([y], [truth]) for y, truth in pairs]
        squares, counts = distance.squares_of(self._truths[: self.draws]), _counts(self._reference)
        even = torch.full_like(squares, 1.0 / self.draws)
        share = budget_for(self._reference, self._precision).norm / self._reference.oracle.norm  # of the first draw
        strays = self._rounded.strays
        times = (strays / strays.median()).nan_to_num(1.0, posinf=1.0)
        otherwise = 1.0 if self._reference.kinked else 0.0
        reach = share * times.where(times >= WORSE, otherwise)[:, None]
        if max(share, float(strays.max())) > NORM_CAP:
            reach = torch.full_like(reach, math.inf)
        gains, shifts = (torch.stack(terms) for terms in zip(*((s.gain, s.shift) for s in each), strict=True))
        return Sums(
            _less_farthest(sums.gain, gains, reach * squares, squares / self._rounded.squares),
            _less_farthest(sums.shift, shifts, reach * (counts * squares).sqrt(), even),
        )


def _within(sums: Sums, allowed: Sums) -> bool:
    return bool((sums.gain.abs() <= allowed.gain).all() and (sums.shift.abs() <= allowed.shift).all())


def _less_farthest(
    totals: torch.Tensor, terms: torch.Tensor, limits: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    """Sums as if the term that is farthest on their side were like the others, where it is within its limit.

    Args:
        totals: the sums: float64 of shape (sums,).
        terms: some of the terms of each: float64 of shape (terms, sums).
        limits: the limits of the terms: the same shape.
        shares: the part of a sum that each term is if all draws are wrong alike: the same shape.
    """
    farthest, at = (terms * totals.sign()).max(0)
    fits = farthest <= limits.gather(0, at[None])[0]
    rest = (totals - totals.sign() * farthest) / (1.0 - shares.gather(0, at[None])[0])
    return rest.where(fits & (rest.abs() < totals.abs()), totals)


def _worst(
    sums: torch.Tensor, allowed: torch.Tensor, unit: torch.Tensor, what: str, reference: TensorReference
) -> Measure:
    ratio = sums.abs() / allowed
    at = int(ratio.where(~((sums == 0) & (allowed == 0)), 0.0).nan_to_num(math.inf).argmax())
    one = float(unit[at]) or 1.0
    return Measure("gain", float(sums[at].abs()) / one, float(allowed[at]) / one, f"{what} {_place(at, reference)}")


def _place(at: int, reference: TensorReference) -> str:
    """The name of a position in the layout of `Sums`."""
    at -= 1
    for axis in reference.oracle.axes:
        size = reference.oracle.reals.shape[axis]
        if 0 <= at < size:
            return f"slice {at} of axis {axis}"
        at -= size
    return "the tensor"


# Chooses the criteria for one tensor of one cell: its kind and its budgets, fixed before the candidate is seen.


@dataclass(frozen=True)
class TensorCriteria:
    """The criteria for one tensor of one cell.

    Attributes:
        case, tensor: names of the case and the tensor.
        reference: the reference of the tensor.
        kind: see `Discrepancy.kind`.
        precision: the precision whose budgets apply: the cell's, or float32 if the tensor must reach it.
        cell_precision: the precision of the cell.
        budget: the budgets at `precision`.
        dtype: name of the dtype that the contract asks for; "" if it asks for none.
        baseline: eager's tensor at the same precision; None in eager cells.
        beside: the distance of that tensor.
        bitwise: identical calls must agree bit for bit.
        others: returns the references of the tensor with other weights, with which the mode is called too.
        keeps_float32: it is a state that eager, of the trusted implementation if there is one, keeps in float32 at the
            same precision.
    """

    case: str
    tensor: TensorName
    reference: TensorReference
    kind: str
    precision: Precision
    cell_precision: Precision
    budget: Budget
    dtype: str
    baseline: torch.Tensor | None
    beside: Distance | None
    bitwise: bool
    others: Callable[[], tuple[TensorReference, ...]] = tuple
    keeps_float32: bool = False

    @property
    def uses_float32_budget(self) -> bool:
        """Whether float32's budgets apply."""
        return self.precision.name == FLOAT32.name

    @cached_property
    def over_draws(self) -> OverDraws | None:
        """The gate of further draws; None if the tensor is not judged over them."""
        redraws = self.reference.redraws
        judged = self.kind == "rounded" and redraws is not None and self.precision.name in redraws.rounded
        return OverDraws(self.reference, self.precision) if judged else None

    @property
    def may_be_left_to_float32(self) -> bool:
        """Whether the cell's low precision may be too coarse for the tensor: for roundings, zeros or a choice."""
        chosen = self.kind == "exact" and not self.reference.oracle.is_rounded and self.cell_precision.is_low
        return chosen or ((self.kind == "rounded" or self.is_judged_by_size) and not self.uses_float32_budget)

    @property
    def is_judged_by_size(self) -> bool:
        """Whether the tensor is what cancellation leaves, so that only its size is judged."""
        return self.kind in ("null", "remainder")

    @property
    def with_other_weights(self) -> tuple["TensorCriteria", ...]:
        """The criteria with other weights, at the budgets of the cell, or at float32's if its precision is low."""
        held = FLOAT32 if self.cell_precision.low_dtype else self.cell_precision
        rounded = [other for other in self.others() if not (other.exact or other.is_null) and held.name in other.spread]
        here = replace(self, kind="rounded", precision=held, cell_precision=held, baseline=None, beside=None)
        return tuple(replace(here, reference=other, budget=budget_for(other, held)) for other in rounded)

    def at_float32(self) -> "TensorCriteria":
        """The same criteria with float32's budgets."""
        if self.kind == "exact":
            return replace(self, cell_precision=FLOAT32)
        return replace(self, precision=FLOAT32, budget=budget_for(self.reference, FLOAT32))


def criteria_for(  # noqa: PLR0913 -- a record's fields
    case: str,
    tensor: TensorName,
    reference: TensorReference,
    precision: Precision,
    *,
    dtype: str,
    baseline: torch.Tensor | None,
    accurate: bool,
    bitwise: bool,
) -> TensorCriteria:
    """Choose the kind and the budgets of a tensor at the precision of a cell; `TensorCriteria` has the other arguments.

    If it is to be accurate, the spec asks for float32's precision in every cell.
    """
    oracle = reference.oracle
    usable = baseline if baseline is not None and baseline.shape == oracle.shape else None
    beside = oracle.distance(usable) if usable is not None else None
    held_to = precision
    if not oracle.raw.numel():
        kind = "empty"
    elif reference.exact or not oracle.is_rounded:
        kind = "exact"
    elif reference.is_null:
        kind, held_to = "remainder" if reference.is_remainder else "null", FLOAT32 if accurate else precision
    else:
        low = bool(precision.autocast)  # for TF32, each kernel chooses whether to use it; a cast model has no float32
        reaches = accurate or (low and beside is not None and holds_float32(beside, reference, precision))
        kind, held_to = ("float32", FLOAT32) if low and reaches else ("rounded", precision)
    budget = Budget(0.0, (), 0.0, 0.0)
    if kind not in ("empty", "exact"):
        budget = budget_for(reference, held_to)
        if beside is not None and all(m.met for m in measures(beside, oracle, budget)):
            budget = budget_for(reference, held_to, beside)  # if eager fails its own budgets, it excuses nothing
        elif kind == "float32" and not accurate:
            kind, held_to, budget = "rounded", precision, budget_for(reference, precision)  # nor does it ask for more
    return TensorCriteria(case, tensor, reference, kind, held_to, precision, budget, dtype, usable, beside, bitwise)

"""Judges one tensor over several draws of a case.

The budgets come from rounded runs: the oracle, with the result of every op rounded to nearest at the cell's precision.
An honest mode rounds no more often than that.
"""

import math
from collections.abc import Sequence

import torch

from conformance.axes import Precision
from conformance.gates.budget import KINKED_SLICE_FACTOR, NOISY, TensorReference, budget_for, gain_floor
from conformance.gates.distance import Rounded, Sums, parts, sample, sizes_of_axes, squares_of, sums_of
from conformance.records.cell import Measure

BIAS_FACTOR = 2.0
NOISE_FACTOR = 5.0  # standard deviations
SUM_SHARE = 0.4  # of the farthest sum over a perturbed run; the noise is at least this much
ERROR_SHARE = 0.8  # of the error of the worst perturbed run, if the errors of elements are independent; the same


def budgets(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """The budgets of the absolute sums over the draws of a candidate.

    They are infinite for slices that are all noise, and where a rounded run has no number.
    """
    underflow = 2.0 * reference.quantum(precision)  # the error of one element
    counts = rounded.draws * _counts(reference)
    size, constants = (counts * rounded.squares).sqrt(), gain_floor(precision)
    least, flips = _least_noise(reference, precision, rounded), _flips(reference, precision, rounded)
    gain = (
        BIAS_FACTOR * rounded.bias.gain
        + NOISE_FACTOR * rounded.noise.gain.maximum(least.gain)
        + constants * rounded.squares
        + underflow * size
        + flips.gain
    )
    shift = (
        BIAS_FACTOR * rounded.bias.shift
        + NOISE_FACTOR * rounded.noise.shift.maximum(least.shift)
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
    sums, share = _strays(reference, precision, rounded), _share(reference, precision)
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
    lengths = sizes_of_axes(sample(reference.oracle.reals))
    typical = [of_axis.mean().expand_as(of_axis) for of_axis in sums[1:].split(lengths)]
    return sums.maximum(torch.cat([sums[:1], *typical]))


def _share(reference: TensorReference, precision: Precision) -> float:
    """The error of the worst perturbed run, relative to the tensor."""
    return reference.spread[precision.name].absolute / reference.oracle.norm


def _strays(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """How far the sums stray if every draw does so relatively as far as the perturbed runs of the first draw."""
    first = parts(sample(reference.oracle.values).square())
    root = math.sqrt(rounded.draws)
    gain, shift = rounded.crowding / first, (rounded.squares / first).sqrt()
    sums = reference.strayed[precision.name]
    return Sums(sums.gain * gain.nan_to_num(root, posinf=root), sums.shift * shift.nan_to_num(root, posinf=root))


def _counts(reference: TensorReference) -> torch.Tensor:
    """How many numbers of one draw each sum adds up."""
    return parts(torch.ones_like(sample(reference.oracle.reals)))


class OverDraws:
    """The gate of one tensor over all its draws at the precision of a cell, at which its reference has redraws."""

    def __init__(self, reference: TensorReference, precision: Precision) -> None:
        assert reference.redraws is not None
        self._reference, self._precision, self._truths = reference, precision, reference.redraws.truths
        self._rounded = reference.redraws.rounded[precision.name]
        self.draws = self._rounded.draws
        self._budgets = budgets(reference, precision, self._rounded)
        self._size = (self.draws * _counts(reference) * self._rounded.squares).sqrt()

    def measures(self, found: Sequence[torch.Tensor | None]) -> tuple[Measure, ...]:
        """The measures of a candidate, sampled in each draw: the gain of the tensor, and the worst other sum."""
        draws, squares, allowed = self.draws, self._rounded.squares, self._budgets
        pairs = zip(found[:draws], self._truths, strict=False)
        there = [y for y, truth in pairs if y is not None and y.shape == truth.shape]
        if len(there) < draws:
            lost = f"absent or of another shape in {draws - len(there)} further draws"
            return (Measure("gain", math.inf, 0.0, lost),)
        sums = sums_of(there, self._truths)
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
        """The sums without the farthest draw of those that were not run rounded, if it is as near as the first must be.

        Rounded runs of some draws do not show how ill-conditioned another one is, such as a softmax near a tie, and its
        error may outweigh those of all others. A wrong factor or constant is in each draw, and so in the others too.
        """
        late = slice(self._rounded.runs, self.draws)
        each = [sums_of([y], [truth]) for y, truth in zip(found[late], self._truths[late], strict=True)]
        if not each:
            return sums
        squares, counts = squares_of(self._truths[late]), _counts(self._reference)
        even = torch.full_like(squares, 1.0 / self.draws)
        share = budget_for(self._reference, self._precision).norm / self._reference.oracle.norm  # of the first draw
        gains, shifts = (torch.stack(terms) for terms in zip(*((s.gain, s.shift) for s in each), strict=True))
        return Sums(
            _less_farthest(sums.gain, gains, share * squares, squares / self._rounded.squares),
            _less_farthest(sums.shift, shifts, share * (counts * squares).sqrt(), even),
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

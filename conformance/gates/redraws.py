"""Judges one tensor over several draws of a case.

The budgets come from rounded runs: the oracle, with the result of every op rounded to nearest at the cell's precision.
An honest mode rounds no more often than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from conformance.axes import Precision
from conformance.gates.budget import GAIN_FLOOR, TensorReference
from conformance.gates.sums import SAMPLE, Rounded, Sums, parts, sampled, sums_of
from conformance.records.observation import Measure

BIAS_FACTOR = 2.0  # times the sum over the rounded runs: what does not average out
NOISE_FACTOR = 5.0  # standard deviations of that sum


def budgets(reference: TensorReference, precision: Precision, rounded: Rounded) -> Sums:
    """The budgets of the absolute sums over the draws of a candidate."""
    underflow = 2.0 * precision.quantum / reference.scale  # the error of one element
    counts = rounded.draws * _counts(reference)
    size = (counts * rounded.squares).sqrt()
    gain = BIAS_FACTOR * rounded.bias.gain.abs() + NOISE_FACTOR * rounded.noise.gain
    shift = BIAS_FACTOR * rounded.bias.shift.abs() + NOISE_FACTOR * rounded.noise.shift
    gain = gain + GAIN_FLOOR * rounded.squares + underflow * size
    shift = shift + GAIN_FLOOR * size + underflow * counts
    if not reference.kinked:
        return Sums(gain, shift)
    flips = _one_draw_of_flips(reference, precision)
    return Sums(gain + flips.gain, shift + flips.shift)


def _counts(reference: TensorReference) -> torch.Tensor:
    """How many numbers of one draw each sum adds up."""
    return parts(torch.ones_like(sampled(reference.oracle.reals)))


def _one_draw_of_flips(reference: TensorReference, precision: Precision) -> Sums:
    """What flipped units may do in one draw: as much as in any perturbed run. The rounded runs may miss a rare flip."""
    oracle, spread = reference.oracle, reference.spread[precision.name]
    share = min(1.0, SAMPLE / oracle.reals.numel())
    norms, strayed = torch.tensor([oracle.norm]), torch.tensor([spread.absolute])
    if share == 1.0:
        norms, strayed = torch.cat([norms, *oracle.slice_norms]), torch.cat([strayed, *spread.slices])
    gain = share * norms * strayed
    gain[0] = share * spread.gain * oracle.norm**2
    return Sums(gain, strayed * (share * _counts(reference)).sqrt())


def redraw_measures(
    found: Sequence[torch.Tensor | None], reference: TensorReference, precision: Precision
) -> tuple[Measure, ...]:
    """The measures of a candidate over all draws: the gain of the tensor, and the worst of the other sums.

    Args:
        found: the candidate's tensor in each draw, as `sampled` gives it.
        reference: the reference of the tensor; it has redraws at the precision.
        precision: the precision of the cell.
    """
    assert reference.redraws is not None
    rounded, truths = reference.redraws.rounded[precision.name], reference.redraws.truths
    there = [y for y, truth in zip(found[: rounded.draws], truths, strict=False) if y is not None and y.shape == truth.shape]
    if len(there) < rounded.draws:
        return (Measure("gain", math.inf, 0.0, f"absent or of another shape in {rounded.draws - len(there)} further draws"),)
    sums = sums_of(there, truths)
    allowed = budgets(reference, precision, rounded)
    size = (rounded.draws * _counts(reference) * rounded.squares).sqrt()
    over = f"over {rounded.draws} draws"
    square = float(rounded.squares[0]) or 1.0
    whole = Measure("gain", abs(float(sums.gain[0])) / square, float(allowed.gain[0]) / square, over)
    worst = _worst(sums.gain, allowed.gain, rounded.squares, "gain of", reference)
    shifted = _worst(sums.shift, allowed.shift, size, "mean error of", reference)
    most = shifted if shifted.margin > worst.margin else worst
    return (whole, Measure("gain", most.value, most.budget, f"{most.detail}, {over}"))


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

"""Computes the budget of each measure from the spread of the oracle's perturbed runs. All constants are here.

`docs/method.md` gives the reason and the evidence for each constant.
"""

import math
from dataclasses import dataclass, field

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.gates.distance import Distance, OracleTensor, Redraws, Sums
from conformance.records.cell import Measure

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
NORM_CAP = 0.5  # above it the angle is checked too, because zeros, with an error of 1, almost pass
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

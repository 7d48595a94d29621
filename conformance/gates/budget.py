"""How much each measure may be, from the spread of the oracle's perturbed runs. All constants are here.

`docs/method.md` gives the reason and the evidence for each constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.gates.distance import Distance, OracleTensor
from conformance.records.observation import Measure

NOISE = 4.0  # unit roundoffs by which the perturbed runs move numbers; this covers a flipped unit
SMOOTH_NOISE = 2.0  # the same for low precisions if nothing can flip
NORM_FACTOR = 1.5
SLICE_FACTOR = 2.0
KINKED_SLICE_FACTOR = 4.0  # one flipped unit moves one slice more than it moves the tensor
POINT_FACTOR = 2.0
GAIN_FACTOR = 2.0
NULL_FACTOR = 8.0
BASELINE_NORM_FACTOR = 2.0  # of eager's own error, in cells that are not eager
BASELINE_FACTOR = 4.0
NULL_CONDITION = 2.0**30  # a relative spread this many roundoffs wide is all noise
FLOAT32 = PRECISIONS["fp32"]
GAIN_FLOOR = NOISE * FLOAT32.unit  # constants rounded once, such as 1 − momentum
DROPPED_SHARE = 0.9
NORM_CAP = 0.5  # beyond it zeros, whose error is 1, come near to passing, and the angle is asked too
MANY = 8  # elements, from which the direction of a tensor means something


@dataclass(frozen=True)
class Budget:
    """The budgets of one tensor at one precision, absolute where the distance is.

    `norm` and `slices` bound ‖y − y*‖, of the whole tensor and of every index of every axis. `turn` bounds
    the angle, and only where the norm's budget is past its cap.
    """

    norm: float
    slices: tuple[torch.Tensor, ...]
    gain: float
    point: float
    turn: float = math.inf


@dataclass(frozen=True)
class TensorReference:
    """What is known of a tensor before any candidate is seen.

    Attributes:
        oracle: the oracle's tensor.
        spread: the farthest distance of any perturbed run, by precision name.
        exact: no rounding op touched it; all perturbed runs equal the oracle bit for bit.
        settled: for integers and booleans, by precision: the elements that no perturbed run changes.
        kinked: the trace holds an op with a kink.
        scale: the cotangents' scale, 1 for tensors that do not depend on it.
    """

    oracle: OracleTensor
    spread: dict[str, Distance]
    exact: bool
    settled: dict[str, torch.Tensor]
    kinked: bool
    scale: float

    @property
    def is_null(self) -> bool:
        """Structurally zero: float64 holds only noise."""
        norm, spread = self.oracle.norm, self.spread["fp32"].absolute
        return norm == 0.0 or spread / norm >= NULL_CONDITION * NOISE * FLOAT32.unit

    def null_slice(self, axis: int, index: int) -> bool:
        """The same of one slice; `axis` counts the axes of `oracle.axes`."""
        norm = float(self.oracle.slice_norms[axis][index])
        spread = float(self.spread["fp32"].slices[axis][index])
        return norm == 0.0 or spread / norm >= NULL_CONDITION * NOISE * FLOAT32.unit


def budget_for(reference: TensorReference, precision: Precision, baseline: Distance | None = None) -> Budget:
    """What a candidate may stray, given the perturbed runs and, in a cell that is not eager, eager's own error."""
    oracle, spread = reference.oracle, reference.spread[precision.name]
    floor = 2.0 * precision.quantum / reference.scale  # what one element may lose to underflow
    count = oracle.reals.numel()
    if reference.is_null:
        beside = BASELINE_FACTOR * baseline.absolute if baseline else 0.0
        return Budget(max(NULL_FACTOR * spread.absolute, beside), (), math.inf, math.inf)
    norm = NORM_FACTOR * max(spread.absolute, precision.unit * oracle.norm) + floor * math.sqrt(count)
    gain = max(GAIN_FACTOR * spread.gain, GAIN_FLOOR) + floor / oracle.rms
    point = POINT_FACTOR * max(spread.point, precision.unit) + floor / oracle.rms
    factor = KINKED_SLICE_FACTOR if reference.kinked else SLICE_FACTOR
    share = max(spread.absolute / oracle.norm, precision.unit)
    slices = tuple(
        factor * torch.maximum(strayed, share * norms) + floor * math.sqrt(count / norms.numel())
        for strayed, norms in zip(spread.slices, oracle.slice_norms, strict=True)
    )
    turn = math.inf
    if norm > NORM_CAP * oracle.norm and count >= MANY:
        turn = 1.0 - 0.5 / math.hypot(1.0, norm / oracle.norm)  # half the cosine that such noise leaves
    if baseline is None:
        return Budget(norm, slices, gain, point, turn)
    share = baseline.absolute / oracle.norm
    return Budget(
        max(norm, BASELINE_NORM_FACTOR * baseline.absolute),
        tuple(
            torch.maximum(most, BASELINE_FACTOR * torch.maximum(own, share * norms))
            for most, own, norms in zip(slices, baseline.slices, oracle.slice_norms, strict=True)
        ),
        max(gain, GAIN_FACTOR * baseline.gain),
        max(point, BASELINE_FACTOR * baseline.point),
        turn,
    )


def measures(y: Distance, oracle: OracleTensor, budget: Budget) -> tuple[Measure, ...]:
    """The gates norm, slice, gain and pointwise; of a structurally zero tensor its absolute size alone."""
    if math.isinf(budget.gain):
        return (Measure("norm", y.absolute, budget.norm, "structurally zero, so absolute"),)
    where = oracle.index(y.worst)
    return (
        Measure("norm", y.absolute / oracle.norm, budget.norm / oracle.norm),
        *_worst_slice(y, oracle, budget),
        Measure("gain", y.gain, budget.gain),
        *_direction(y, budget),
        Measure("pointwise", y.point, budget.point, f"element {where}" if where else ""),
    )


def _direction(y: Distance, budget: Budget) -> tuple[Measure, ...]:
    """Zeros and the negative stay wrong where rounding may move a tensor by its own size."""
    if math.isinf(budget.turn):
        return ()
    turn = math.inf if math.isnan(y.turn) else y.turn
    return (Measure("gain", turn, budget.turn, "of the angle to the oracle, 1 − cos"),)


def _worst_slice(y: Distance, oracle: OracleTensor, budget: Budget) -> tuple[Measure, ...]:
    worst, found = -1.0, ()  # type: tuple[float, tuple[Measure, ...]]
    for k, axis in enumerate(oracle.axes):
        ratio = (y.slices[k] / budget.slices[k]).nan_to_num(0.0, posinf=math.inf)  # 0/0: a zero that was met
        index = int(ratio.argmax())
        if float(ratio[index]) > worst:
            worst = float(ratio[index])
            norm = float(oracle.slice_norms[k][index]) or 1.0
            error, most = float(y.slices[k][index]) / norm, float(budget.slices[k][index]) / norm
            found = (Measure("slice", error, most, f"slice {index} of axis {axis}"),)
    return found


def holds_float32(baseline: Distance, reference: TensorReference, precision: Precision) -> bool:
    """Whether eager computed this tensor in float32 although the cell's precision is low."""
    wide, low = reference.spread["fp32"].absolute, reference.spread[precision.name].absolute
    if wide > max(precision.unit * reference.oracle.norm, low) / 8:
        return False
    spread = reference.spread["fp32"]
    norm = reference.oracle.norm
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

"""How much each measure may be, from how far the oracle's probe runs strayed. The constants stand here.

`docs/method.md` gives the reason and the evidence for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.discrepancy import Distance, Yardstick
from conformance.records import Measure

NOISE = 4.0  # the probes perturb by this many unit roundoffs, which covers a flipped unit
SMOOTH_NOISE = 2.0  # the same for low precisions where nothing can flip
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
class Allowance:
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
class Bounds:
    """What is known of a tensor before any candidate is seen.

    Attributes:
        yardstick: the oracle's tensor.
        spread: the probes' farthest distance, by precision name.
        exact: no rounding op touched it; all probes equal the oracle bit for bit.
        settled: for integers and booleans, by precision: where no probe differs from the oracle.
        kinked: the trace holds an op with a kink.
        scale: the cotangents' scale, 1 for tensors that do not depend on it.
    """

    yardstick: Yardstick
    spread: dict[str, Distance]
    exact: bool
    settled: dict[str, torch.Tensor]
    kinked: bool
    scale: float

    @property
    def is_null(self) -> bool:
        """Structurally zero: float64 holds only noise."""
        norm, spread = self.yardstick.norm, self.spread["fp32"].absolute
        return norm == 0.0 or spread / norm >= NULL_CONDITION * NOISE * FLOAT32.unit

    def null_slice(self, axis: int, index: int) -> bool:
        """The same of one slice; `axis` counts the yardstick's axes."""
        norm = float(self.yardstick.slice_norms[axis][index])
        spread = float(self.spread["fp32"].slices[axis][index])
        return norm == 0.0 or spread / norm >= NULL_CONDITION * NOISE * FLOAT32.unit


def allowance(bounds: Bounds, precision: Precision, baseline: Distance | None) -> Allowance:
    """What a candidate may stray, given the probes and, in a cell that is not eager, eager's own error."""
    yardstick, spread = bounds.yardstick, bounds.spread[precision.name]
    floor = 2.0 * precision.quantum / bounds.scale  # what one element may lose to underflow
    count = yardstick.oracle.numel()
    if bounds.is_null:
        beside = BASELINE_FACTOR * baseline.absolute if baseline else 0.0
        return Allowance(max(NULL_FACTOR * spread.absolute, beside), (), math.inf, math.inf)
    norm = NORM_FACTOR * max(spread.absolute, precision.unit * yardstick.norm) + floor * math.sqrt(count)
    gain = max(GAIN_FACTOR * spread.gain, GAIN_FLOOR) + floor / yardstick.rms
    point = POINT_FACTOR * max(spread.point, precision.unit) + floor / yardstick.rms
    factor = KINKED_SLICE_FACTOR if bounds.kinked else SLICE_FACTOR
    share = max(spread.absolute / yardstick.norm, precision.unit)
    slices = tuple(
        factor * torch.maximum(strayed, share * norms) + floor * math.sqrt(count / norms.numel())
        for strayed, norms in zip(spread.slices, yardstick.slice_norms, strict=True)
    )
    turn = math.inf
    if norm > NORM_CAP * yardstick.norm and count >= MANY:
        turn = 1.0 - 0.5 / math.hypot(1.0, norm / yardstick.norm)  # half the cosine that such noise leaves
    if baseline is None:
        return Allowance(norm, slices, gain, point, turn)
    share = baseline.absolute / yardstick.norm
    return Allowance(
        max(norm, BASELINE_NORM_FACTOR * baseline.absolute),
        tuple(
            torch.maximum(allowed, BASELINE_FACTOR * torch.maximum(own, share * norms))
            for allowed, own, norms in zip(slices, baseline.slices, yardstick.slice_norms, strict=True)
        ),
        max(gain, GAIN_FACTOR * baseline.gain),
        max(point, BASELINE_FACTOR * baseline.point),
        turn,
    )


def measures(y: Distance, yardstick: Yardstick, allowed: Allowance) -> tuple[Measure, ...]:
    """The gates norm, slice, gain and pointwise; of a structurally zero tensor its absolute size alone."""
    if math.isinf(allowed.gain):
        return (Measure("norm", y.absolute, allowed.norm, "structurally zero, so absolute"),)
    where = yardstick.index(y.worst)
    return (
        Measure("norm", y.absolute / yardstick.norm, allowed.norm / yardstick.norm),
        *_worst_slice(y, yardstick, allowed),
        Measure("gain", y.gain, allowed.gain),
        *_direction(y, allowed),
        Measure("pointwise", y.point, allowed.point, f"element {where}" if where else ""),
    )


def _direction(y: Distance, allowed: Allowance) -> tuple[Measure, ...]:
    """Zeros and the negative stay wrong where rounding may move a tensor by its own size."""
    if math.isinf(allowed.turn):
        return ()
    turn = math.inf if math.isnan(y.turn) else y.turn
    return (Measure("gain", turn, allowed.turn, "of the angle to the oracle, 1 − cos"),)


def _worst_slice(y: Distance, yardstick: Yardstick, allowed: Allowance) -> tuple[Measure, ...]:
    worst, found = -1.0, ()  # type: tuple[float, tuple[Measure, ...]]
    for k, axis in enumerate(yardstick.axes):
        ratio = (y.slices[k] / allowed.slices[k]).nan_to_num(0.0, posinf=math.inf)  # 0/0: a zero that was met
        index = int(ratio.argmax())
        if float(ratio[index]) > worst:
            worst = float(ratio[index])
            norm = float(yardstick.slice_norms[k][index]) or 1.0
            error, budget = float(y.slices[k][index]) / norm, float(allowed.slices[k][index]) / norm
            found = (Measure("slice", error, budget, f"slice {index} of axis {axis}"),)
    return found


def holds_float32(baseline: Distance, bounds: Bounds, precision: Precision) -> bool:
    """Whether eager computed this tensor in float32 although the cell's precision is low."""
    wide, low = bounds.spread["fp32"].absolute, bounds.spread[precision.name].absolute
    if wide > max(precision.unit * bounds.yardstick.norm, low) / 8:
        return False
    spread = bounds.spread["fp32"]
    norm = bounds.yardstick.norm
    probes_alone = Allowance(
        max(spread.absolute, FLOAT32.unit * norm),
        tuple(
            torch.maximum(strayed, max(spread.absolute / norm, FLOAT32.unit) * norms)
            for strayed, norms in zip(spread.slices, bounds.yardstick.slice_norms, strict=True)
        ),
        math.nextafter(math.inf, 0),
        max(spread.point, FLOAT32.unit),
    )
    return all(m.met for m in measures(baseline, bounds.yardstick, probes_alone) if m.gate != "gain")

"""What the child processes of the studies are told and what they return. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.records.cell import Observation
from conformance.records.convert import Rounded
from conformance.records.measurements import Ratio, Reason
from conformance.records.tasks import CellTask, Target

UNDAMAGED = "nothing"  # the name of the damage that leaves a tensor as it is


@dataclass(frozen=True)
class Survivor:
    """A damaged tensor that every gate accepted.

    Attributes:
        damage: its name.
        case, tensor, kind: of the tensor.
        size: norm of the change over the norm of the tensor; NaN if the shape changed.
        margin: the worst value over its budget.
    """

    damage: str
    case: str
    tensor: str
    kind: str
    size: Rounded
    margin: Rounded


@dataclass(frozen=True)
class DamagedCell:
    """What became of a cell, and of its tensors after damage.

    Attributes:
        seen: the undamaged cell.
        damages: by the name of the damage, how many tensors were "tried" and "killed", and how many each gate and
            each rival rejected.
        survivors: damaged tensors that every gate accepted.
        seconds: spent on damages.
    """

    seen: Observation
    damages: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    survivors: tuple[Survivor, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingTask:
    """Train the checkerboard network.

    Attributes:
        device, mode, precision: where and how.
        size: pixels along each side of the board.
        steps: how many.
        picture: file for the board that the network draws, beside its target; "" for none.
    """

    device: str
    mode: str
    precision: str
    size: int
    steps: int
    picture: str = ""


@dataclass(frozen=True)
class Training:
    """What one training took and reached.

    Attributes:
        first, rest: seconds of the first steps and of the others.
        loss: before the last step.
        skipped: steps whose gradients were not finite.
        peak: bytes; on CUDA the most that was allocated at one time, on the CPU the most that a step allocates.
        flops: floating-point operations of a step.
        tf32: whether the device rounds to TF32; "" on a device that has no TF32.
    """

    first: float
    rest: float
    loss: float
    skipped: int
    peak: int
    flops: int
    tf32: str = ""


@dataclass(frozen=True)
class Comparison:
    """A training step side by side with the eager one in float32.

    Attributes:
        ratio: how many times faster than the eager step; None if there is no figure.
        seconds, eager_seconds: median times of the two steps.
        reason: why there is no figure.
    """

    ratio: Ratio | None = None
    seconds: float = 0.0
    eager_seconds: float = 0.0
    reason: Reason | None = None


@dataclass(frozen=True)
class MeterTask:
    """Let every meter compare three programs.

    Attributes:
        program: the name of the network.
        budget: seconds that a meter may take for one program.
        busy: how many endless loops run at the same time.
        seed: of the order of the meters, and of the sizes of the memory taken before each network.
    """

    program: str
    budget: float
    busy: int
    seed: int


@dataclass(frozen=True)
class Reading:
    """What one rule makes of the measurements of one process.

    Attributes:
        verdicts: faster, slower, same, or too noisy, by the name of the program compared with the baseline.
        ratios: time of the baseline over time of the program, by the rule's own statistic.
        seconds: of timed calls of the baseline.
        intervals: of the ratios, if the meter gives any.
        reason: why there is no verdict, if the meter tells.
        wall: seconds of the meter, with its own warm-up and controls.
    """

    verdicts: Mapping[str, str]
    ratios: Mapping[str, float]
    seconds: float
    intervals: Mapping[str, Ratio] = field(default_factory=dict)
    reason: str = ""
    wall: float = 0.0


@dataclass(frozen=True)
class Readings:
    """The readings of one process, by the name of the rule."""

    by_rule: Mapping[str, Reading]


DAMAGED_CELL = Target("benchmarks.damaged_cell:observe", CellTask, DamagedCell)
TRAIN = Target("benchmarks.checkerboard_trial:train", TrainingTask, Training)
COMPARE = Target("benchmarks.checkerboard_trial:compare", TrainingTask, Comparison)
METERS = Target("benchmarks.meter_trial:observe", MeterTask, Readings)

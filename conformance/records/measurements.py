"""The records that measuring processes return, and the words of their verdicts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from conformance.records.convert import ABOVE_ZERO, Digits, one_of

FIGURES = {  # the figures that can be timed of a model, with their titles in reports
    "forward": "forward",
    "gradient": "forward and backward",
    "step": "training step",
    "fit": "whole training",
}
MARGIN = 1.03  # two copies of one model differ by up to one percent, depending on where their weights lie in memory
FASTER, SLOWER, SAME, NOISY = "faster", "slower", "same", "too noisy"

FiveDigits = Annotated[float, Digits(5)]
PositiveFiveDigits = Annotated[float, Digits(5), ABOVE_ZERO]
Positive = Annotated[float, ABOVE_ZERO]


@dataclass(frozen=True)
class Reason:
    """Why there is no figure: a few words for a table, and the rest for a note; "" if the words say it all."""

    short: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.short}: {self.detail}" if self.detail else self.short


@dataclass(frozen=True)
class Ratio:
    """How many times faster: time of the baseline over time of the variant.

    Attributes:
        middle: median over the pairs of calls.
        low, high: 99 % interval of the median; for several processes, the interval that spans all of theirs.
        clean: share of all pairs in which neither call waited for a processor.
        processes: number of processes that measured it.
    """

    middle: PositiveFiveDigits
    low: PositiveFiveDigits
    high: PositiveFiveDigits
    pairs: int
    clean: FiveDigits = 1.0
    processes: int = 1

    @property
    def verdict(self) -> str:
        """`FASTER`, `SLOWER` or `SAME` if the whole interval is above, below or within `MARGIN`; otherwise `NOISY`."""
        if self.low > MARGIN:
            return FASTER
        if self.high < 1 / MARGIN:
            return SLOWER
        return SAME if self.low >= 1 / MARGIN and self.high <= MARGIN else NOISY

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the ratio."""
        return math.log(self.high / self.low) / 2


@dataclass(frozen=True)
class CellTiming:
    """What one process measured of one cell, or the reason why there is no figure.

    Attributes:
        seconds: median time of one call.
        warm_calls: number of calls until the time was steady.
        ratios: how many times faster than each baseline, by the baseline's cell id.
    """

    seconds: float | None = None
    warm_calls: int = 0
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    reason: Reason | None = None


@dataclass(frozen=True)
class Timing:
    """What one process measured of cells that it timed side by side, by cell id.

    Attributes:
        controls: the ratios of the two controls to the baseline, by the control's name.
        seconds: seconds spent in each phase, by the name of the phase.
        samples: (ns, host_ns, delay_ns) of each call, as in `figures.meter.Sample`; empty unless they were asked for.
    """

    figure: Annotated[str, one_of(FIGURES)]
    cells: Mapping[str, CellTiming]
    controls: Mapping[str, Ratio] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PerPass:
    """A count of forward alone, and of forward and backward together; None if it could not be taken."""

    forward: int | None = None
    both: int | None = None


@dataclass(frozen=True)
class Footprint:
    """What a cell costs, counted and not timed. A count that could not be taken is None, and `why` has the reason.

    Attributes:
        saved: bytes that autograd saves, as `zoo.memory.saved_bytes` counts them.
        held: bytes that forward leaves allocated, apart from its result.
        peak: most bytes allocated at one time in forward and backward.
        flops: floating-point operations of matrix products, convolutions and attention, in eager.
        least_bytes: fewest bytes that a call must move.
        why: the reason for each missing count, by the name of the count, such as "saved" or "flops.both".
    """

    saved: int | None = None
    held: int | None = None
    peak: int | None = None
    flops: PerPass = PerPass()
    least_bytes: PerPass = PerPass()
    why: Mapping[str, Reason] = field(default_factory=dict)

    def count(self, name: str) -> int | None:
        """The count of that name; "flops.both" is that of forward and backward.

        >>> Footprint(saved=8, flops=PerPass(4, 12)).count("flops.both")
        12
        """
        outer, _, inner = name.partition(".")
        found = getattr(self, outer)
        value: int | None = getattr(found, inner) if inner else found
        return value

    def why_not(self, name: str) -> Reason:
        """Why there is no count of that name."""
        return self.why.get(name) or self.why.get(name.partition(".")[0]) or Reason("reason unknown")


@dataclass(frozen=True)
class CompileRun:
    """What one start of a mode cost before its first result, or the reason why it is not known.

    Attributes:
        first_output, first_gradient: seconds from the start to the result; None if there is none.
        cache: how the cache of compiled code was used: "hit", "miss" or "off"; "" if nothing is compiled.
    """

    first_output: float | None = None
    first_gradient: float | None = None
    cache: str = ""
    reason: Reason | None = None


@dataclass(frozen=True)
class CompileCost:
    """What a mode costs before its first result: a start with an empty compile cache, and those with what it filled.

    No start is warm if the mode does not compile.
    """

    cold: CompileRun
    warm: tuple[CompileRun, ...] = ()


@dataclass(frozen=True)
class Ceilings:
    """The highest rates of a device, on one thread of the host.

    FLOP/s by the name of the precision, and pairs (bytes moved, bytes/s) by rising size.
    """

    flop_rates: Mapping[str, Positive]
    byte_rates: tuple[tuple[Positive, Positive], ...]


Result = Timing | Footprint | CompileCost | Ceilings | Reason

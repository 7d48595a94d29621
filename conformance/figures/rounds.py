"""Holds the samples of several calls, one of each per round, and computes their ratios."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from conformance.errors import NotMeasuredError
from conformance.figures.ratio import FEWEST_PAIRS, ratio_of
from conformance.records.measurements import Ratio

NARROW = 0.01  # half-width of an interval that ends the sampling
CLEAN_ENOUGH = 0.2  # share of the pairs that must be undisturbed
UNDISTURBED = 0.01  # largest share of its time that an undisturbed sample waits for a processor


@dataclass(frozen=True)
class Sample:
    """The time of one call.

    Attributes:
        ns: nanoseconds that count: those of the device's clock on a GPU, otherwise the same as `host_ns`.
        host_ns: nanoseconds of wall time on the host.
        delay_ns: nanoseconds of `host_ns` in which the thread waited for a processor.
    """

    ns: float
    host_ns: float
    delay_ns: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether the call hardly waited for a processor."""
        return self.delay_ns <= UNDISTURBED * self.host_ns


@dataclass
class Rounds:
    """The samples of several calls: a list by the name of the call, with one sample for each round."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, taken: dict[str, Sample]) -> None:
        """Add one round: a sample by the name of each call."""
        for name, sample in taken.items():
            self.samples.setdefault(name, []).append(sample)

    @property
    def count(self) -> int:
        """The number of rounds."""
        return min((len(s) for s in self.samples.values()), default=0)

    def ratio(self, baseline: str, variant: str) -> Ratio:
        """How many times faster than the baseline the variant is.

        Raises:
            NotMeasuredError: too few rounds, or too many of them disturbed.
        """
        pairs = list(zip(self.samples[baseline], self.samples[variant], strict=True))
        clean = [(a, b) for a, b in pairs if a.clean and b.clean]
        share = len(clean) / len(pairs)
        if len(clean) < max(FEWEST_PAIRS, CLEAN_ENOUGH * len(pairs)):
            seen = f"the processor was undisturbed in {len(clean)} of {len(pairs)} pairs"
            raise NotMeasuredError("too noisy", seen)
        return ratio_of([math.log(a.ns / b.ns) for a, b in clean], clean=share)

    def seconds(self, name: str) -> float:
        """Median time of one call, in seconds."""
        return statistics.median(s.ns for s in self.samples[name]) / 1e9

    def is_narrow(self, baseline: str) -> bool:
        """Whether the interval of every ratio to the baseline is narrower than `NARROW`."""
        try:
            return all(self.ratio(baseline, name).half_width < NARROW for name in self.samples if name != baseline)
        except NotMeasuredError:
            return False

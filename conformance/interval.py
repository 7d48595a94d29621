"""What pairs of times say about a ratio: its interval, when there are enough of them, and the verdict.

Pure: numbers in, words out; no clock and no torch. Intervals are those of the median by order statistics, so
they assume nothing of how times scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

CONFIDENCE = 0.99
MARGIN = 1.03  # two copies of one model differ by up to one percent, by where their weights lie in memory
FEWEST_PAIRS = 8  # fewer have no 99 % interval: all may fall on one side of the median by chance
FASTER, SLOWER, SAME, NOISY = "faster", "slower", "same", "too noisy"


@dataclass(frozen=True)
class Ratio:
    """How many times faster: time of the baseline over time of the variant.

    Attributes:
        middle: median over the pairs.
        low, high: 99 % interval of the median; of several processes, the hull of theirs.
        pairs: that the median was taken from.
        clean: share of all pairs in which neither side waited for a processor.
        processes: that measured it.
    """

    middle: float
    low: float
    high: float
    pairs: int
    clean: float = 1.0
    processes: int = 1

    @property
    def verdict(self) -> str:
        """Faster, slower or the same by more than the margin; too noisy where the interval straddles it."""
        if self.low > MARGIN:
            return FASTER
        if self.high < 1 / MARGIN:
            return SLOWER
        return SAME if self.low >= 1 / MARGIN and self.high <= MARGIN else NOISY

    @property
    def half_width(self) -> float:
        """Of the interval, relative."""
        return math.log(self.high / self.low) / 2

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ratio:
        return cls(**data)

    def to_json(self) -> dict[str, Any]:
        return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in vars(self).items()}


def ratio(logs: Sequence[float], *, clean: float = 1.0) -> Ratio:
    """The ratio that pairs give.

    Args:
        logs: log(time of the baseline / time of the variant), one for each pair.
        clean: share of all pairs that these are.

    Raises:
        ValueError: fewer than 8 pairs.
    """
    if len(logs) < FEWEST_PAIRS:
        raise ValueError(f"an interval of 99 % needs {FEWEST_PAIRS} pairs, got {len(logs)}")
    ordered = sorted(logs)
    outside = _ranks_outside(len(ordered))
    low, high = ordered[outside], ordered[-1 - outside]
    return Ratio(math.exp(statistics.median(ordered)), math.exp(low), math.exp(high), len(ordered), clean)


def pooled(ratios: Sequence[Ratio]) -> Ratio:
    """One ratio from several processes: the hull, so that a claim must come true in each of them.

    A process has a bias of its own that its interval does not show.
    """
    return Ratio(
        middle=statistics.geometric_mean(r.middle for r in ratios),
        low=min(r.low for r in ratios),
        high=max(r.high for r in ratios),
        pairs=sum(r.pairs for r in ratios),
        clean=min(r.clean for r in ratios),
        processes=sum(r.processes for r in ratios),
    )


@cache
def _ranks_outside(n: int) -> int:
    """How many of n ordered values to leave out on either side, so that the median is within with 99 %."""
    tail, outside = 0.0, 0
    for rank in range(n):
        tail += math.comb(n, rank) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside = rank
    return outside

"""What pairs of times show of a ratio: its interval, if there are enough of them.

This is pure arithmetic, without a clock and without torch. Intervals are those of the median by order statistics, so
they assume nothing about how times scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

from conformance.records.measurements import Ratio

CONFIDENCE = 0.99
FEWEST_PAIRS = 8  # fewer have no 99 % interval: all may fall on one side of the median by chance


def ratio_of(logs: Sequence[float], *, clean: float = 1.0) -> Ratio:
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

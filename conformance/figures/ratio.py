"""Computes a ratio and its interval from pairs of times.

This is pure arithmetic, without a clock and without torch. The intervals are those of the median by order statistics,
so they assume nothing about the distribution of times.
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
    """The ratio of several pairs of times, with its 99 % interval.

    Args:
        logs: log(time of the baseline / time of the variant), one for each pair.
        clean: share of all pairs that were used.

    Raises:
        ValueError: fewer than 8 pairs.

    >>> found = ratio_of([math.log(r) for r in (1.8, 1.9, 1.9, 2.0, 2.0, 2.1, 2.1, 2.2)])
    >>> round(found.middle, 2), round(found.low, 2), round(found.high, 2), found.verdict
    (2.0, 1.8, 2.2, 'faster')
    """
    if len(logs) < FEWEST_PAIRS:
        raise ValueError(f"an interval of 99 % needs {FEWEST_PAIRS} pairs, got {len(logs)}")
    ordered = sorted(logs)
    outside = _ranks_outside(len(ordered))
    low, high = ordered[outside], ordered[-1 - outside]
    return Ratio(math.exp(statistics.median(ordered)), math.exp(low), math.exp(high), len(ordered), clean)


def pooled_ratio(ratios: Sequence[Ratio]) -> Ratio:
    """One ratio from those of several processes. Its interval spans all of theirs, so a gain must show in each of them.

    A process has a bias of its own that its interval does not show.

    Raises:
        ValueError: no ratios.

    >>> both = pooled_ratio([Ratio(1.0, 0.9, 1.1, pairs=20), Ratio(1.21, 1.2, 1.3, pairs=30)])
    >>> round(both.middle, 2), both.low, both.high, both.pairs, both.processes
    (1.1, 0.9, 1.3, 50, 2)
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
    """How many of n ordered values to leave out at each end, so that the others enclose the median with 99 %."""
    tail, outside = 0.0, 0
    for rank in range(n):
        tail += math.comb(n, rank) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside = rank
    return outside

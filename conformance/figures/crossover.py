"""Says in one line at which sizes of a model a variant pays, and how near a call comes to the limit of the machine.

The line is about the tried sizes only, and names each size without a clear verdict.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from conformance.records.measurements import FASTER, NOISY, SAME, Ratio, Reason

NOT_MEASURED = Reason("not measured")


@dataclass(frozen=True)
class Point:
    """One size of a model and how much faster the variant is there; without a ratio, why it could not be measured.

    >>> Point(64, Ratio(2.0, 1.9, 2.1, pairs=20)).verdict
    'faster'
    >>> Point(4096, None, Reason("out of memory", "24 GiB")).verdict
    'out of memory'
    """

    size: int
    ratio: Ratio | None
    reason: Reason = NOT_MEASURED

    @property
    def verdict(self) -> str:
        """The verdict of the ratio; without a ratio, the short reason on one line."""
        return self.ratio.verdict if self.ratio else " ".join(self.reason.short.split())

    @property
    def clear(self) -> bool:
        """Whether the verdict is faster, slower or the same."""
        return self.ratio is not None and self.ratio.verdict != NOISY


def crossover(points: Iterable[Point], size_name: str) -> str:
    """The sizes at which a variant pays, in one line. It pays if it is faster; the same time is no gain.

    >>> fast, slow = Ratio(2.0, 1.9, 2.1, pairs=20), Ratio(0.5, 0.4, 0.6, pairs=20)
    >>> crossover([Point(16, slow), Point(64, None, Reason("out of time")), Point(256, fast)], "width")
    'pays from width 256 on (64: out of time)'
    """
    tried = sorted(points, key=lambda p: p.size)
    return _answer(tried, size_name) + _exceptions(tried)


def _answer(tried: Sequence[Point], size_name: str) -> str:
    """The answer from the clear verdicts."""
    clear = [p for p in tried if p.clear]
    if not clear:
        return "no clear answer" if any(p.ratio for p in tried) else "nothing measured"
    runs = [(verdict, list(run)) for verdict, run in groupby(clear, key=lambda p: p.verdict)]
    gains = [run for verdict, run in runs if verdict == FASTER]
    if len(tried) == 1:
        return f"{'pays' if gains else 'does not pay'} at {size_name} {tried[0].size}, the only size tried"
    if not gains:
        return f"never pays up to {size_name} {clear[-1].size}"
    if len(gains) > 1:
        return "no clear answer: " + ", ".join(
            f"{'the same' if verdict == SAME else verdict} at {_span(run)}" for verdict, run in runs
        )
    return _one_range(gains[0], tried, size_name)


def _one_range(gain: Sequence[Point], tried: Sequence[Point], size_name: str) -> str:
    """The answer if the sizes that pay follow one another. It says nothing about sizes that were not tried."""
    first, last = gain[0].size, gain[-1].size
    if len(gain) == len(tried):
        return f"pays at every size tried ({_span(gain)})"
    if (first, last) == (tried[0].size, tried[-1].size):
        return f"pays from {size_name} {first} to {last}"
    if last == tried[-1].size:
        return f"pays from {size_name} {first} on"
    if first == tried[0].size:
        return f"pays up to {size_name} {last}"
    if first == last:
        return f"pays {'only ' if all(p.clear for p in tried) else ''}at {size_name} {first}"
    return f"pays between {size_name} {first} and {last}"


def _exceptions(tried: Sequence[Point]) -> str:
    """The sizes without a clear verdict, grouped by the reason."""
    sizes: dict[str, list[str]] = {}
    for point in tried:
        if not point.clear:
            sizes.setdefault(point.verdict, []).append(str(point.size))
    named = "; ".join(f"{', '.join(these)}: {why}" for why, these in sizes.items())
    return f" ({named})" if named else ""


def _span(run: Sequence[Point]) -> str:
    return str(run[0].size) if len(run) == 1 else f"{run[0].size} to {run[-1].size}"


def share(flops: float, least_bytes: float, seconds: float, flop_rate: float, byte_rate: float) -> float:
    """The share of the limit of the machine that a call reached: the least time it could take over the time it took.

    The rates are the highest of the machine, in FLOP/s and in bytes/s. Above 1, a count or the clock is wrong: for
    example, the call reads only part of its inputs, or a convolution multiplies less than its definition says.

    >>> share(flops=3e9, least_bytes=1e8, seconds=0.125, flop_rate=1e11, byte_rate=1e9)
    0.8
    """
    return max(flops / flop_rate, least_bytes / byte_rate) / seconds


def byte_rate(rates: Sequence[tuple[float, float]], least_bytes: float) -> float:
    """The highest bytes/s for a call, from the rates at several sizes.

    It is the highest rate of the largest size up to `least_bytes`, which the call must move, and of all larger sizes. A
    buffer smaller than the call's data is at most in a faster cache, so the ceiling is never too low. Larger sizes
    count too, because the cost of a call slows down small ones.

    >>> byte_rate([(16, 5.0), (64, 9.0), (256, 2.0)], least_bytes=20), byte_rate([(16, 5.0), (64, 2.0)], 64)
    (9.0, 2.0)
    """
    start = max((size for size, _ in rates if size <= least_bytes), default=0)
    return max(rate for size, rate in rates if size >= start)

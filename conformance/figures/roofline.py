"""How near a call comes to what the machine can do: the least time that its work could take, over the time it took."""

from __future__ import annotations

from collections.abc import Sequence


def share(flops: float, least_bytes: float, seconds: float, flop_rate: float, byte_rate: float) -> float:
    """The share of the limit that a call reached: the least time it could take over the time it took.

    Args:
        flops: that the call needs.
        least_bytes: that it has to move.
        seconds: that it took.
        flop_rate: FLOP/s at most.
        byte_rate: bytes/s at most, from `byte_rate`.

    Returns:
        A number above 0 where there is work. Above 1, the model of bytes or the clock is wrong: the model reads
        only part of its inputs, say, or a convolution multiplies less than its definition says.

    Raises:
        ValueError: the time or a rate is not above 0, or the work is negative.

    >>> share(flops=3e9, least_bytes=1e8, seconds=0.125, flop_rate=1e11, byte_rate=1e9)
    0.8
    """
    if not (seconds > 0 and flop_rate > 0 and byte_rate > 0):
        got = f"{seconds}, {flop_rate} and {byte_rate}"
        raise ValueError(f"share: seconds, flop_rate and byte_rate must be above 0, got {got}")
    if not (flops >= 0 and least_bytes >= 0):
        raise ValueError(f"share: flops and least_bytes must not be negative, got {flops} and {least_bytes}")
    return max(flops / flop_rate, least_bytes / byte_rate) / seconds


def byte_rate(rates: Sequence[tuple[float, float]], least_bytes: float) -> float:
    """The ceiling for a call that has to move so many bytes.

    The size just below `least_bytes` counts, and every larger one: a smaller buffer only sits in a faster cache,
    so the ceiling is never too low for what does not fit; and where a size is so small that the cost of a call
    slows it down, larger ones tell more.

    Args:
        rates: (bytes moved, bytes/s) by rising size, as `Ceilings` has them.
        least_bytes: of the call.

    Raises:
        ValueError: no rates.

    >>> byte_rate([(16, 5.0), (64, 9.0), (256, 2.0)], least_bytes=20), byte_rate([(16, 5.0), (64, 2.0)], 64)
    (9.0, 2.0)
    """
    if not rates:
        raise ValueError("byte_rate: rates must hold at least one size, got none")
    below = [size for size, _ in rates if size <= least_bytes]
    start = max(below, default=0)
    return max(rate for size, rate in rates if size >= start)

"""Computes how near a call comes to the limit of the machine: the least time it could take, over the time it took."""

from __future__ import annotations

from collections.abc import Sequence


def share(flops: float, least_bytes: float, seconds: float, flop_rate: float, byte_rate: float) -> float:
    """The share of the limit that a call reached: the least time it could take over the time it took.

    Args:
        flops: floating-point operations of the call.
        least_bytes: bytes that it must move.
        seconds: time that it took.
        flop_rate: highest FLOP/s of the machine.
        byte_rate: highest bytes/s of the machine, from `byte_rate`.

    Returns:
        A number above 0 if there is work. If it is above 1, a count or the clock is wrong: for example, the call reads
        only part of its inputs, or a convolution multiplies less than its definition says.

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
    """The highest bytes/s for a call, from the rates at several sizes.

    It is the highest rate of the largest size up to `least_bytes` and of all larger sizes. A buffer smaller than the
    call's data is at most in a faster cache, so the ceiling is never too low. Larger sizes count too, because the cost
    of a call slows down small ones.

    Args:
        rates: pairs (bytes moved, bytes/s) by rising size, as in `Ceilings`.
        least_bytes: bytes that the call must move.

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

"""The most this machine can do in a second: numbers multiplied, and bytes moved, on one thread.

A ceiling is the best of many samples, not their middle: whatever disturbs a sample only makes it slower. Bytes have
no single ceiling. What fits a cache moves several times faster than what does not, and a model that is called again
and again finds its small tensors in the cache. So the rate is measured at many sizes, and a model is held to the
one of a buffer no larger than what the model has to move: see `byte_rate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.axes import PRECISIONS
from conformance.cell import set_policy

Work = tuple[float, Callable[[], Any]]

SECONDS = 1.0  # of samples for one ceiling
LONG_ENOUGH = 0.01  # a product of this many seconds needs no larger one beside it
SIDES = {"cpu": (128, 256, 512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192)}
SMALLEST, STEP, BEYOND_CACHE = 2**14, 4, 4  # bytes moved; factor between sizes; the largest in last caches
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 64 * 2**20


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: measure the ceilings of task["device"] for task["precisions"].

    Nothing else should run meanwhile: whoever starts this holds `machine.alone`.

    Returns: "flop_rates": FLOP/s by precision; "byte_rates": [bytes moved, bytes/s] by rising size.
    """
    set_policy()
    device = task["device"]
    enter_phase("multiply")
    dtypes = dict.fromkeys(("float32", *(PRECISIONS[name].autocast or "float32" for name in task["precisions"])))
    rates = {dtype: _multiply_rate(getattr(torch, dtype), device) for dtype in dtypes}
    enter_phase("move")
    return {
        "flop_rates": {
            # kernels may compute narrow numbers in float32, which is faster where the processor lacks them
            name: max(rates["float32"], rates[PRECISIONS[name].autocast or "float32"])
            for name in task["precisions"]
        },
        "byte_rates": [[size, _move_rate(size, device)] for size in _sizes(_last_cache(device))],
    }


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


def byte_rate(rates: list[list[float]], least_bytes: float) -> float:
    """The ceiling for a call that has to move so many bytes.

    The size just below `least_bytes` counts, and every larger one: a smaller buffer only sits in a faster cache,
    so the ceiling is never too low for what does not fit; and where a size is so small that the cost of a call
    slows it down, larger ones tell more.

    Args:
        rates: [bytes moved, bytes/s], as `observe` returns them.
        least_bytes: of the call.

    Raises:
        ValueError: no rates.

    >>> byte_rate([[16, 5.0], [64, 9.0], [256, 2.0]], least_bytes=20), byte_rate([[16, 5.0], [64, 2.0]], 64)
    (9.0, 2.0)
    """
    if not rates:
        raise ValueError("byte_rate: rates must hold at least one size, got none")
    below = [size for size, _ in rates if size <= least_bytes]
    start = max(below, default=0)
    return max(rate for size, rate in rates if size >= start)


def _multiply_rate(dtype: torch.dtype, device: str) -> float:
    """FLOP/s of square products; the best size differs between machines, so several are tried."""
    products: list[Work] = []
    for side in SIDES[device]:
        # random numbers: zeros multiply faster on some devices
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product = _product(a, b)
        products.append((2.0 * side**3, product))
        if _seconds(product, device) > LONG_ENOUGH:
            break
    return _best(products, device)


def _product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _move_rate(size: int, device: str) -> float:
    """Bytes/s, read and written together, of a copy or of a change in place, whichever is faster.

    A copy also fetches the lines that it is about to overwrite; a change in place does not.
    """
    source, target = (torch.randn(size // 8, device=device) for _ in range(2))  # half the bytes each
    return _best([(size, lambda: target.copy_(source)), (size, target.neg_)], device)


def _best(work: list[Work], device: str) -> float:
    """The highest rate among samples of every call in turn, each given with the work it does."""
    for _, call in work:
        _seconds(call, device)
    best, end = 0.0, time.perf_counter() + SECONDS
    while not best or time.perf_counter() < end:
        best = max([best, *(amount / _seconds(call, device) for amount, call in work)])
    return best


def _seconds(call: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        started = time.perf_counter_ns()
        call()
        return max(time.perf_counter_ns() - started, 1) / 1e9
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _sizes(last_cache: int) -> list[int]:
    """Sizes from what any first cache holds to several times the last cache."""
    sizes = [SMALLEST]
    while sizes[-1] < BEYOND_CACHE * last_cache:
        sizes.append(sizes[-1] * STEP)
    return sizes


def _last_cache(device: str) -> int:
    """Bytes of the last cache, or a large guess where the system does not tell."""
    if device == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", UNKNOWN_CACHE))
    try:
        told = [(path / "size").read_text().strip() for path in CPU_CACHES.glob("index*")]
        return max(int(size.removesuffix("K")) * 1024 for size in told)
    except (OSError, ValueError):
        return UNKNOWN_CACHE

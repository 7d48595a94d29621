"""Child process: measures the highest rates of this machine, in operations and in bytes per second.

A ceiling is the best of many samples, not their median, because a disturbance only makes a sample slower. Bytes have no
single ceiling: data that fits a cache moves several times faster, and a model that is called repeatedly finds its small
tensors in the cache. So the rate is measured at many sizes, and `crossover.byte_rate` chooses the one for a model.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.cell import policy
from conformance.process.child_side import ChildProcess
from conformance.records.measurements import Ceilings
from conformance.records.tasks import CeilingsTask

Work = tuple[float, Callable[[], Any]]  # FLOPs or bytes of a call, and the call
Candidates = tuple[Precision, list[Work]]  # calls that compete for one ceiling, and the precision that they run at

SECONDS, BURST = 1.0, 0.02  # seconds of samples for one ceiling in all, and in one turn
LONG_ENOUGH = 0.01  # seconds; after a product that takes longer, no larger one is tried
SIDES = {"cpu": (128, 256, 512, 1024, 2048, 4096), "cuda": (1024, 2048, 4096, 8192)}
SMALLEST, STEP, BEYOND_CACHE = 2**14, 4, 4  # smallest size in bytes; factor between sizes; largest size in last caches
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 64 * 2**20


def observe(task: CeilingsTask, process: ChildProcess) -> Ceilings:
    """Measure the ceilings of a device at the task's precisions, alone on the machine."""
    policy.set_policy()
    with process.alone():
        with process.phase("prepare"):
            precisions = [PRECISIONS[name] for name in dict.fromkeys(("fp32", *task.precisions))]
            sizes = _sizes(_last_cache(task.device))
            work = [_products(precision, task.device) for precision in precisions]
            work += [(PRECISIONS["fp32"], _moves(size, task.device)) for size in sizes]
        with process.phase("measure"):
            found = _ceilings(work, task.device)
    rates = dict(zip((p.name for p in precisions), found, strict=False))
    return Ceilings(
        # kernels may compute narrow numbers in float32, which is faster if the processor lacks them
        flop_rates={name: max(rates["fp32"], rates[name]) for name in task.precisions},
        byte_rates=tuple((float(size), rate) for size, rate in zip(sizes, found[len(precisions) :], strict=True)),
    )


def _products(precision: Precision, device: str) -> Candidates:
    """Square products; which size is best differs between machines."""
    policy.switch_tf32(precision)
    dtype = getattr(torch, precision.autocast or "float32")
    products: list[Work] = []
    for side in SIDES[device]:
        # random numbers: zeros multiply faster on some devices
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product = _product(a, b)
        products.append((2.0 * side**3, product))
        product()  # the first call loads kernels, which takes longer than a product
        if _seconds(product, device) > LONG_ENOUGH:
            break
    return precision, products


def _product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _moves(size: int, device: str) -> list[Work]:
    """A copy and a change in place, by the bytes read and written together.

    A copy also fetches the lines that it is about to overwrite; a change in place does not.
    """
    source, target = (torch.randn(size // 8, device=device) for _ in range(2))  # half the bytes each
    return [(size, lambda: target.copy_(source)), (size, target.neg_)]


def _ceilings(ceilings: list[Candidates], device: str) -> list[float]:
    """The best rate of each ceiling. They take turns, so that a slow second of the machine does not hit only one."""
    best, end = [0.0] * len(ceilings), time.perf_counter() + SECONDS * len(ceilings)
    while not all(best) or time.perf_counter() < end:
        best = [max(rate, _best(*rivals, device)) for rate, rivals in zip(best, ceilings, strict=True)]
    return best


def _best(precision: Precision, work: list[Work], device: str) -> float:
    """The highest rate in a burst of samples of all calls in turn."""
    policy.switch_tf32(precision)
    for _, call in work:
        _seconds(call, device)
    best, end = 0.0, time.perf_counter() + BURST
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
    """Sizes in bytes, from one that fits every first-level cache to several times the last cache."""
    sizes = [SMALLEST]
    while sizes[-1] < BEYOND_CACHE * last_cache:
        sizes.append(sizes[-1] * STEP)
    return sizes


def _last_cache(device: str) -> int:
    """Size of the last-level cache in bytes; a large guess if the system does not tell it."""
    if device == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", UNKNOWN_CACHE))
    try:
        told = [(path / "size").read_text().strip() for path in CPU_CACHES.glob("index*")]
        return max(int(size.removesuffix("K")) * 1024 for size in told)
    except (OSError, ValueError):
        return UNKNOWN_CACHE

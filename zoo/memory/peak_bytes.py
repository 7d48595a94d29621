"""Count the bytes of one call from its allocations: the peak, and the bytes that stay allocated after the call.

The profiler records every allocation and every release in order. The peak is the maximum of their running sum. This
also works for compiled code, which allocates in the same way; a dispatch mode would deactivate torch.compile.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from zoo import internals


def peak_bytes(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """Count the peak of the bytes that `fn(*args)` allocates, above the bytes allocated before the call.

    `fn` is called twice: first to compile a compiled callable, then for the count. Each allocation counts with the
    requested bytes, without padding. On CUDA the function reads the allocator's statistics and resets those of the
    peak. It does not see memory that libraries allocate without torch, and on the CPU it does not see that `fn`
    frees memory from before the call. Garbage collection, which could run at any time, is off during the call, so
    objects in reference cycles live until its end.

    Args:
        fn: a module or function, plain, scripted or compiled.
        args: the arguments of `fn`.

    Returns:
        Bytes by device type, such as `Counter({"cpu": 48})`; a device without allocations gives 0. The peaks
        of several devices of one type are added.

    Raises:
        TypeError: `fn` is not callable.

    >>> x = torch.ones(4, 3)
    >>> peak_bytes(lambda x: x.exp().sin().sum(), x)["cpu"]  # exp(x) and its sine, then the sine and the sum
    96
    """
    _warm(fn, args, "peak_bytes")
    before = {device: _requested(device, "current") for device in _cuda_devices()}
    for device in before:
        torch.cuda.reset_peak_memory_stats(device)
    _, events = _watched(fn, args)
    peak, _ = _replayed(events)
    peak["cuda"] = sum(_requested(device, "peak") - at_entry for device, at_entry in before.items())
    return +peak


def kept_bytes(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """Count the bytes that `fn(*args)` allocates and that stay allocated with its result, without the result itself.

    Unlike `held_bytes`, it also works for compiled callables. For others the two agree, except for tensors that no
    op returns, which only `kept_bytes` sees: a number converted to a tensor, or the state of a random generator.
    `fn` is called twice, as in `peak_bytes`.

    Args:
        fn: a module or function, plain, scripted or compiled.
        args: the arguments of `fn`.

    Returns:
        Bytes by device type; a device without such bytes gives 0.

    Raises:
        TypeError: `fn` is not callable.

    >>> x = torch.ones(4, 3, requires_grad=True)
    >>> kept_bytes(lambda x: x.exp().sin().sum(), x)["cpu"]  # exp(x), for both derivatives
    48
    """
    _warm(fn, args, "kept_bytes")
    result, events = _watched(fn, args)
    _, alive = _replayed(events)
    for leaf in internals.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            storage = leaf.untyped_storage()
            alive.pop((storage.device.type, storage.data_ptr()), None)
    on_cuda = _alive_on_cuda() if _cuda_devices() else {}
    kept: Counter[str] = Counter()
    for (device, address), size in alive.items():
        kept[device] += on_cuda.get(address, 0) if device == "cuda" else size
    return kept


def _warm(fn: Callable[..., Any], args: tuple[Any, ...], name: str) -> None:
    if not callable(fn):
        raise TypeError(f"{name}: fn must be callable, got {type(fn).__name__}")
    fn(*args)
    gc.collect()  # garbage of this call must not be freed during the counted call


def _watched(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return the result of a call, and its allocations and releases in order of time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with profile(use_kineto=True, profile_memory=True) as watch:
            result = fn(*args)
            gc.collect()  # frees objects that only a reference cycle keeps alive
    finally:
        if collects:
            gc.enable()
    assert watch.kineto_results is not None
    events = _allocations(watch.kineto_results.experimental_event_tree())
    return result, sorted(events, key=lambda event: event.start_time_ns)


def _allocations(events: list[Any]) -> Iterator[Any]:
    for event in events:
        if event.tag == internals.allocation_event.Allocation:
            yield event
        yield from _allocations(event.children)


def _replayed(events: list[Any]) -> tuple[Counter[str], dict[tuple[str, int], int]]:
    """Return the peak by device type, and the size of every remaining allocation by device type and address."""
    alive: dict[tuple[str, int], int] = {}
    now: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for event in events:
        change = event.extra_fields
        device = change.device.type
        if change.alloc_size > 0:
            alive[device, change.ptr] = change.alloc_size
            now[device] += change.alloc_size
            peak[device] = max(peak[device], now[device])
        else:
            now[device] -= alive.pop((device, change.ptr), 0)
    return peak, alive


def _cuda_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _requested(device: int, which: str) -> int:
    """Return the requested bytes; allocated bytes depend on the cache, by up to 1 MiB per allocation."""
    return int(torch.cuda.memory_stats(device)[f"requested_bytes.all.{which}"])


def _alive_on_cuda() -> dict[int, int]:
    """Return the requested bytes by address; the profiler records the blocks, which are larger."""
    found = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[address] = block["requested_size"]
            address += block["size"]
    return found

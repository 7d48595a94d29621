"""Lets the CPU draw random numbers in half precision as in float32. From one seed, it would draw others."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

HALF = (torch.float16, torch.bfloat16)
DRAWING = ("normal_", "uniform_")  # below all ops whose numbers depend on the dtype
TRIED = 24  # numbers; of so many, torch draws the last 16 once more in float32
IN_FLOAT32 = "drawn in float32"  # the fact of a cell


@cache
def can_be_float32() -> bool:
    """Whether this torch lets a kernel be replaced by one that calls it. It is tried."""
    if not hasattr(torch.library, "get_kernel"):
        return False
    try:
        with in_float32():
            half, single = (torch.randn(TRIED, dtype=dtype, generator=_seeded()) for dtype in (HALF[0], torch.float32))
    except (RuntimeError, TypeError):
        return False
    return torch.equal(half, single.to(half.dtype))


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """While active, what a kernel of the CPU draws in half precision is drawn in float32 and rounded.

    It replaces the kernels, and not the ops that a model calls, so that scripts and compiled code draw so too.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a kernel that is replaced
        for name in DRAWING:
            library.impl(name, _widened(torch.library.get_kernel(f"aten::{name}", "CPU")), "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 -- what torch's own scoped library calls


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _widened(kernel: Any) -> Callable[..., torch.Tensor]:
    def draw(keys: Any, target: torch.Tensor, *numbers: float, generator: torch.Generator | None = None) -> Any:
        if target.dtype not in HALF:
            return kernel.call_boxed(keys, target, *numbers, generator=generator)
        drawn = torch.empty_strided(target.shape, target.stride(), dtype=torch.float32)
        kernel.call_boxed(keys, drawn, *numbers, generator=generator)
        return target.copy_(drawn)

    return draw

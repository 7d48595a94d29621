"""Lets the CPU draw random numbers in half precision as in float32. From one seed, it would draw others."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from conformance.axes import Precision
from conformance.evaluate import process_state
from zoo import internals
from zoo.spec import Spec

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
            half, single = (
                torch.randn(TRIED, dtype=dtype, generator=_generator()) for dtype in (HALF[0], torch.float32)
            )
    except (RuntimeError, TypeError):
        return False
    return torch.equal(half, single.to(half.dtype))


def as_the_oracle(spec: Spec, precision: Precision) -> contextlib.AbstractContextManager[set[str]]:
    """A context for the calls of a model, in which it draws what the oracle draws, as far as this torch can do that.

    Args:
        spec: the spec of the model.
        precision: the precision of the cell.
    """
    if process_state.DRAWS in spec.changes_state and precision.low_dtype and can_be_float32():
        return in_float32()
    return contextlib.nullcontext(set())


@contextlib.contextmanager
def in_float32() -> Iterator[set[str]]:
    """While active, what a kernel of the CPU draws in half precision is drawn in float32 and rounded.

    It replaces the kernels, and not the ops that a model calls, so that scripts and compiled code draw so too.

    Yields:
        names of the kernels that have drawn so; each is added when it does.
    """
    drew: set[str] = set()
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a kernel that is replaced
            for name in DRAWING:
                kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
                library.impl(name, _widen(kernel, partial(drew.add, name)), "CPU", with_keyset=True)
        yield drew
    finally:
        internals.remove_kernels(library)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _widen(kernel: Any, note: Callable[[], None]) -> Callable[..., torch.Tensor]:
    def draw(keys: Any, target: torch.Tensor, *numbers: float, generator: torch.Generator | None = None) -> Any:
        if target.dtype not in HALF:
            return kernel.call_boxed(keys, target, *numbers, generator=generator)
        note()
        drawn = torch.empty_strided(target.shape, target.stride(), dtype=torch.float32)
        kernel.call_boxed(keys, drawn, *numbers, generator=generator)
        return target.copy_(drawn)

    return draw

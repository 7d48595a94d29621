"""Tells which backward pass is running: the judge's, or one that a model runs in its forward.

Under float16, the judge scales its cotangents, as a `GradScaler` does the loss. Nobody scales those of a model that
takes gradients in its forward, as a gradient penalty does, so their small numbers underflow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from zoo import internals

_IN_FORWARD = ContextVar("in_forward", default=False)


@contextlib.contextmanager
def in_forward() -> Iterator[None]:
    """The context in which the forward of a model runs."""
    before = _IN_FORWARD.set(True)
    try:
        yield
    finally:
        _IN_FORWARD.reset(before)


def is_running() -> bool:
    """Whether autograd is running a backward pass."""
    return internals.current_node() is not None


def is_scaled() -> bool:
    """Whether it is running one whose cotangents are scaled."""
    return is_running() and not _IN_FORWARD.get()

"""Runs the judge's backward pass, and tells it from one that a model runs in its forward.

Under float16, the judge scales its cotangents, as a `GradScaler` does the loss. Nobody scales those of a model that
takes gradients in its forward, as a gradient penalty does, so their small numbers underflow.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
from torch.utils.checkpoint import CheckpointFunction

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


def nodes_of(outputs: Iterable[torch.Tensor]) -> list[Any]:
    """The nodes of the graph behind some tensors, each once."""
    nodes: list[Any] = [output.grad_fn for output in outputs]
    seen = set(nodes)
    for node in nodes:  # it grows
        new = [following for following, _ in getattr(node, "next_functions", ()) if following not in seen]
        seen.update(new)
        nodes += new
    return nodes


# Reentrant checkpoints run only where `backward` accumulates into `.grad`.

_APPLY: Callable[..., Any] = CheckpointFunction.apply
_used = False


def plain_checkpoints() -> contextlib.AbstractContextManager[Any]:
    """A context in which a reentrant checkpoint keeps what it computes, as if there were none."""
    return mock.patch.object(CheckpointFunction, "apply", staticmethod(_plain))


def _plain(function: Callable[..., Any], _: bool, *arguments: Any) -> Any:  # noqa: FBT001 -- torch's own order
    return function(*arguments)


@contextlib.contextmanager
def note_reentrant() -> Iterator[None]:
    """A context for a forward; it notes whether there was a reentrant checkpoint, for `gradients`."""
    global _used  # noqa: PLW0603 -- the graph does not say so cheaply
    _used = False
    if CheckpointFunction.apply is _plain:
        yield
        return
    with mock.patch.object(CheckpointFunction, "apply", staticmethod(_note)):
        yield


def _note(*arguments: Any) -> Any:
    global _used  # noqa: PLW0603 -- the same
    _used = True
    return _APPLY(*arguments)


def gradients(
    roots: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    *,
    create_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """The gradients of leaves; None for one that no root depends on. The roots are results of the last forward.

    Raises:
        RuntimeError: the gradients cannot have gradients in turn behind a reentrant checkpoint.
    """
    if not _used or create_graph:  # a second derivative raises torch's error
        return torch.autograd.grad(roots, wanted, cotangents, create_graph=create_graph, allow_unused=True)
    with keep_grads(wanted):
        for leaf in wanted:
            leaf.grad = None
        torch.autograd.backward(roots, cotangents)
        return [leaf.grad for leaf in wanted]


@contextlib.contextmanager
def keep_grads(leaves: Collection[torch.Tensor]) -> Iterator[None]:
    """A context that puts back each `.grad` at its end."""
    before = [leaf.grad for leaf in leaves]
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad

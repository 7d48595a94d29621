"""The bytes one call saves for backward: each storage once, inputs and parameters apart.

A naive sum over the tensors that `torch.autograd.graph.saved_tensors_hooks` shows counts a storage again for
every view and every op that saves it, and counts the weights, which live anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class SavedBytes:
    """Bytes of the storages that the graph of one result holds.

    Attributes:
        saved: what lives for backward alone, and results that backward needs.
        inputs: storages of the call's arguments.
        parameters: storages of parameters and buffers, and of every other leaf that gets a gradient.

    >>> SavedBytes(saved=8, inputs=4, parameters=16).total
    28
    """

    saved: int
    inputs: int
    parameters: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.saved + self.inputs + self.parameters


class _Entry:
    """Stands in the graph for one saved tensor, and dies with its place there."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise TypeError(f"saved_bytes: every saved tensor must have a storage, got layout {tensor.layout}")
        self.tensor = tensor.detach()  # an output that held its own graph would never be freed


def saved_bytes(fn: Callable[..., Any], *args: Any) -> SavedBytes:
    """Count the bytes that `fn(*args)` saves for backward, on all devices together.

    `fn` is called twice, random draws and running statistics included: first without being watched, so that a
    compiled callable is compiled, then for the count. A storage counts as a whole, however small a part of
    it is used, since as a whole it is kept alive; one that is freed before the call returns does not count.

    Args:
        fn: a module or function, plain, scripted or compiled.
        args: its arguments; tensors may stand inside lists, tuples and dicts.

    Returns:
        The bytes held. All are zero where no gradient is recorded. Not seen are tensors that a Function keeps
        as attributes of `ctx`, and whatever is saved under hooks that `fn` itself installs (for these there
        is `held_bytes`).

    Raises:
        TypeError: `fn` is not callable, or a saved tensor is sparse.
        RuntimeError: hooks on saved tensors are forbidden here.

    >>> x = torch.ones(4, 3, requires_grad=True)
    >>> saved_bytes(lambda x: x.exp().t().sin(), x)  # both save exp(x): 12 numbers of 4 bytes, once
    SavedBytes(saved=48, inputs=0, parameters=0)
    >>> saved_bytes(nn.Linear(3, 2), x)
    SavedBytes(saved=0, inputs=48, parameters=24)
    """
    if not callable(fn):
        raise TypeError(f"saved_bytes: fn must be callable, got {type(fn).__name__}")
    fn(*args)
    entries: WeakSet[_Entry] = WeakSet()

    # Not to be traced itself where `fn` is compiled in parts: a traced `pack` makes no entry.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def pack(tensor: Tensor) -> _Entry:
        entry = _Entry(tensor)
        entries.add(entry)
        return entry

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def unpack(entry: _Entry) -> Tensor:
        return entry.tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = fn(*args)
    held = _storages(entry.tensor for entry in entries)
    inputs = held.keys() & _storages(_tensors(args)).keys()
    owned = [*fn.parameters(), *fn.buffers()] if isinstance(fn, nn.Module) else []
    parameters = (held.keys() & _storages([*owned, *_leaves(result)]).keys()) - inputs
    return SavedBytes(
        saved=sum(held[key] for key in held.keys() - inputs - parameters),
        inputs=sum(held[key] for key in inputs),
        parameters=sum(held[key] for key in parameters),
    )


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tensors: Any) -> dict[int, int]:
    """Bytes by storage. The address of the storage itself: that of its data is 0 for every meta tensor."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
    return {storage._cdata: storage.nbytes() for storage in storages}  # noqa: SLF001


def _leaves(result: Any) -> list[Tensor]:
    """The leaves whose gradients the graph of `result` computes, through closures and compiled code too."""
    pending = [tensor.grad_fn for tensor in _tensors(result) if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        following = {node for node, _ in pending.pop().next_functions if node is not None} - seen
        seen |= following
        pending += following
    return [node.variable for node in seen if type(node).__name__ == "AccumulateGrad"]  # type: ignore[attr-defined]

"""Count the bytes that one call saves for backward: each storage once, with inputs and parameters separate.

A plain sum over the tensors that `torch.autograd.graph.saved_tensors_hooks` gets has two faults. It counts a storage
again for every view and for every op that saves it. It also counts the weights, which exist anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from zoo import internals


@dataclass(frozen=True)
class SavedBytes:
    """The bytes of the storages that the graph of one result holds.

    Attributes:
        saved: bytes that exist only for backward, and bytes of results that backward needs.
        inputs: bytes of the call's arguments.
        parameters: bytes of parameters and buffers, and of every other leaf that gets a gradient.

    >>> SavedBytes(saved=8, inputs=4, parameters=16).total
    28
    """

    saved: int
    inputs: int
    parameters: int

    @property
    def total(self) -> int:
        """The sum of `saved`, `inputs` and `parameters`."""
        return self.saved + self.inputs + self.parameters


class _Entry:
    """Represents one saved tensor in the graph, and is freed with the node that holds it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise TypeError(f"saved_bytes: every saved tensor must have a storage, got layout {tensor.layout}")
        self.tensor = tensor.detach()  # an output that holds its own graph would never be freed


def saved_bytes(fn: Callable[..., Any], *args: Any) -> SavedBytes:
    """Count the bytes that `fn(*args)` saves for backward, on all devices together.

    `fn` is called twice, with all side effects: first to compile a compiled callable, then for the count. A storage
    counts as a whole even if a saved tensor is a small part of it, because all of it stays alive. A storage that is
    freed before the call returns does not count.

    Args:
        fn: a module or function, plain, scripted or compiled.
        args: the arguments of `fn`; tensors may be inside lists, tuples and dicts.

    Returns:
        The bytes; all are zero if no gradient is recorded. They do not include tensors that a Function keeps as
        attributes of `ctx`, or tensors saved under hooks that `fn` installs itself (use `held_bytes` for these).

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
    result, entries = _watched(fn, args)
    held = _storages(entry.tensor for entry in entries)
    inputs = held.keys() & _storages(_tensors(args)).keys()
    owned = [*fn.parameters(), *fn.buffers()] if isinstance(fn, nn.Module) else []
    parameters = (held.keys() & _storages([*owned, *_leaves(result)]).keys()) - inputs
    return SavedBytes(
        saved=sum(held[key] for key in held.keys() - inputs - parameters),
        inputs=sum(held[key] for key in inputs),
        parameters=sum(held[key] for key in parameters),
    )


def _watched(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, WeakSet[_Entry]]:
    """Return the result of a call, and an entry for each tensor that its graph holds."""
    entries: WeakSet[_Entry] = WeakSet()

    # After a graph break torch.compile would trace the hooks, and a traced `pack` adds no entry.
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
    return result, entries


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in internals.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storages(tensors: Any) -> dict[int, int]:
    """Return bytes by address of the storage object; the address of the data is 0 for every meta tensor."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
    return {internals.identity_of(storage): storage.nbytes() for storage in storages}


def _leaves(result: Any) -> list[Tensor]:
    """Return the leaves whose gradients the graph of `result` computes, also through closures and compiled code."""
    pending = [tensor.grad_fn for tensor in _tensors(result) if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        following = {node for node, _ in pending.pop().next_functions if node is not None} - seen
        seen |= following
        pending += following
    return [node.variable for node in seen if type(node).__name__ == "AccumulateGrad"]  # type: ignore[attr-defined]

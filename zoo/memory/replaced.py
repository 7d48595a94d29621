"""Replace saved tensors by other tensors: the pack and unpack hooks of `offload_to_cpu` and `compress`.

A pair of plain hooks has four faults, which this module avoids. If two ops save one tensor (ReLU its output, the next
layer its input), the hooks keep two copies of it. They copy parameters, which exist anyway. An output that is kept
with its graph keeps itself alive for ever. Autograd raises an error if a saved tensor was changed in place, but it
does not check tensors behind hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from zoo import internals


@dataclass(frozen=True, eq=False)
class _Packed:
    held: Tensor
    version: int
    device: torch.device
    dtype: torch.dtype


class Replaced(saved_tensors_hooks):
    """A context manager that saves `replace(tensor)` instead of a tensor; backward casts and moves it back.

    Leaves that require a gradient (parameters), views of them, and tensors without a storage (sparse ones)
    are not replaced. A tensor that several ops save is replaced once.

    Args:
        name: the name of the context manager in error messages.
        replace: returns the replacement, of any floating dtype on any device, or its argument.

    Raises:
        TypeError: `name` is not a str, or `replace` is not callable.
        RuntimeError: in backward, if a tensor that was not replaced was changed in place after forward.

    >>> x = torch.full((3,), 0.1, requires_grad=True)
    >>> with Replaced("rounded", lambda tensor: tensor.bfloat16()):
    ...     y = (x * 1).square()
    >>> torch.autograd.grad(y.sum(), x)[0].tolist()
    [0.2001953125, 0.2001953125, 0.2001953125]
    """

    def __init__(self, name: str, replace: Callable[[Tensor], Tensor]) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Replaced: name must be a str, got {type(name).__name__}")
        if not callable(replace):
            raise TypeError(f"Replaced: replace must be callable, got {type(replace).__name__}")
        self._name = name
        self._replace = replace
        self._packed: WeakValueDictionary[Any, _Packed] = WeakValueDictionary()
        # After a graph break, eager code calls these hooks; torch.compile must not trace them.
        super().__init__(torch.compiler.disable(self._pack), torch.compiler.disable(self._unpack))

    def _pack(self, tensor: Tensor) -> _Packed:
        detached = tensor.detach()
        if _stays(tensor):
            return _packed(tensor, detached)
        key = _identity(detached)
        known = self._packed.get(key)
        if known is None:
            known = self._packed[key] = _packed(tensor, self._replace(detached))
        return known

    def _unpack(self, packed: _Packed) -> Tensor:
        if internals.version_of(packed.held) != packed.version:
            shape = list(packed.held.shape)
            raise RuntimeError(f"{self._name}: a tensor of shape {shape}, saved for backward, was changed in place")
        return packed.held.to(packed.device, packed.dtype)


def _packed(tensor: Tensor, held: Tensor) -> _Packed:
    return _Packed(held, internals.version_of(held), tensor.device, tensor.dtype)


def _stays(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided:
        return True
    base = internals.base_of(tensor)
    base = tensor if base is None else base
    return base.is_leaf and base.requires_grad


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for equal views of one storage; a weak reference prevents reuse of its address."""
    place = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
    return internals.StorageWeakRef(tensor.untyped_storage()), internals.version_of(tensor), *place

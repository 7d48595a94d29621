"""Count the bytes that one call allocates and that are still allocated after it, apart from its result.

`saved_bytes` asks autograd. It does not see tensors under hooks that the call installs itself, because only the
innermost hooks get a saved tensor. `held_bytes` looks at storages instead: it counts those that were created during
the call and are alive after it, by device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo import internals


class _NewStorages(internals.TorchDispatchMode):  # type: ignore[misc]
    """Records device and size of every storage that an op returns and that was not an input of an op before."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[internals.StorageWeakRef, tuple[str, int]] = {}

    def record(self, tree: Any, *, new: bool) -> None:
        for leaf in internals.tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                size = storage.nbytes() if new else 0
                self.sizes.setdefault(internals.StorageWeakRef(storage), (storage.device.type, size))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.record((args, kwargs), new=False)
        output = func(*args, **(kwargs or {}))
        self.record(output, new=True)
        return output


def held_bytes(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """Count the bytes that `fn(*args)` allocates and that stay allocated with its result, without the result itself.

    For an eager call these are the tensors that backward needs, apart from inputs and parameters: this is
    `saved_bytes(...).saved`, less the result if it is saved. Under hooks inside `fn`, it counts the bytes that the
    hooks keep.

    Args:
        fn: a module or function; it is called once. It must not be compiled: torch.compile is inactive while ops
            are watched, and a function whose first call is watched stays uncompiled.
        args: the arguments of `fn`.

    Returns:
        Bytes by device type, such as `Counter({"cpu": 48})`; a device without such bytes gives 0.

    Raises:
        TypeError: `fn` is not callable.

    >>> from zoo.memory import compress
    >>> def squeezed(x):
    ...     with compress():
    ...         return x.exp().sin().sum()
    >>> x = torch.ones(4, 3, requires_grad=True)
    >>> held_bytes(squeezed, x)["cpu"]
    24
    """
    if not callable(fn):
        raise TypeError(f"held_bytes: fn must be callable, got {type(fn).__name__}")
    with _NewStorages() as storages:
        result = fn(*args)
    for leaf in internals.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            storages.sizes.pop(internals.StorageWeakRef(leaf.untyped_storage()), None)
    held: Counter[str] = Counter()
    for storage, (device, size) in storages.sizes.items():
        held[device] += 0 if storage.expired() else size
    return held

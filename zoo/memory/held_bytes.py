"""The bytes one call leaves allocated behind its result, whoever allocated them.

`saved_bytes` asks autograd, and cannot look behind hooks that the call installs itself: only the innermost
hooks are shown a saved tensor. This one asks the allocations: which storages were made during the call and
are alive after it, on which device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Births(TorchDispatchMode):
    """Notes device and size of every storage that an op returns and that no op was given before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.born: dict[StorageWeakRef, tuple[str, int]] = {}

    def note(self, tree: Any, *, born: bool) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                size = storage.nbytes() if born else 0
                self.born.setdefault(StorageWeakRef(storage), (storage.device.type, size))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note((args, kwargs), born=False)
        output = func(*args, **(kwargs or {}))
        self.note(output, born=True)
        return output


def held_bytes(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """Count the bytes that `fn(*args)` allocates and that live on while its result does, result apart.

    For an eager call these are what backward needs, beside inputs and parameters: `saved_bytes(...).saved`
    less the result, where that is saved. Hooks inside `fn` are counted by what they really keep.

    Args:
        fn: a module or function, called once. Nothing compiled: torch.compile steps aside while ops are
            watched, and a function that is first called so stays uncompiled.
        args: its arguments.

    Returns:
        Bytes by device type, such as `Counter({"cpu": 48})`; a device that holds nothing gives 0.

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
    with _Births() as births:
        result = fn(*args)
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            births.born.pop(StorageWeakRef(leaf.untyped_storage()), None)
    held: Counter[str] = Counter()
    for storage, (device, size) in births.born.items():
        held[device] += 0 if storage.expired() else size
    return held

"""Save only the arguments of a function, and run its forward pass again in backward.

This is the non-reentrant form of `torch.utils.checkpoint.checkpoint`. Unlike the older, reentrant form, it supports
`torch.autograd.grad`, gradients of tensors that `fn` does not get as arguments, and second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute(fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn(*args)` without saving its intermediate results, and call it again when backward needs them.

    The second call gets the same random numbers and the same autocast state. Side effects of `fn` happen twice, such
    as updates of the running statistics of a batch norm.

    Args:
        fn: a module or function that does the same in each call.
        args: the arguments of `fn`; tensors among them are saved.

    Returns:
        The result of `fn`.

    Raises:
        TypeError: `fn` is not callable.
        RuntimeError: `forbid_saved_tensor_hooks` forbids hooks on saved tensors here.

    >>> import torch
    >>> x = torch.full((3,), 2.0, requires_grad=True)
    >>> from zoo.memory import saved_bytes
    >>> saved_bytes(lambda x: x.exp().sin().exp(), x)
    SavedBytes(saved=24, inputs=0, parameters=0)
    >>> saved_bytes(lambda x: recompute(lambda x: x.exp().sin().exp(), x), x)
    SavedBytes(saved=0, inputs=12, parameters=0)
    """
    if not callable(fn):
        raise TypeError(f"recompute: fn must be callable, got {type(fn).__name__}")
    return checkpoint(fn, *args, use_reentrant=False)

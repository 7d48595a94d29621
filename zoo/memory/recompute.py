"""Saved tensors not saved: the arguments are kept, and backward runs the forward pass again.

`torch.utils.checkpoint.checkpoint`, non-reentrant: unlike the older form it gives gradients to
`torch.autograd.grad` and to tensors that `fn` takes from elsewhere, and can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute(fn: Callable[..., Any], *args: Any) -> Any:
    """Call `fn(*args)`, keep no intermediate result of it, and call it again when backward needs them.

    The second call sees the same random numbers and the same autocast state. What `fn` changes by the way it
    changes twice, such as the running statistics of a batch norm.

    Args:
        fn: a module or function, the same at each call.
        args: its arguments; the tensors among them are saved.

    Returns:
        What `fn` returns.

    Raises:
        TypeError: `fn` is not callable.
        RuntimeError: hooks on saved tensors are forbidden here, by `forbid_saved_tensor_hooks`.

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

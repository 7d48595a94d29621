"""Hooks on saved tensors forbidden, with a message of one's own.

Source: an article on `disable_saved_tensors_hooks`, which claims that it saves memory and makes results
unusable for gradients. It does neither: tensors are saved as ever, and backward runs. It makes an error of
installing hooks, and so of everything built on them, such as non-reentrant checkpointing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def forbid_saved_tensor_hooks(message: str) -> AbstractContextManager[None]:
    """Context manager in which installing hooks on saved tensors raises RuntimeError with `message`.

    For code that would be wrong under somebody's hooks. It saves no memory and changes no gradient.

    Args:
        message: the error's text; say who forbids and why.

    Returns:
        The context manager. Entering it raises RuntimeError where hooks are active already.

    Raises:
        TypeError: `message` is not a str.
        ValueError: `message` is empty.

    >>> from zoo.memory import recompute
    >>> with forbid_saved_tensor_hooks("no hooks here"):
    ...     recompute(torch.sin, torch.ones(2, requires_grad=True))
    Traceback (most recent call last):
    RuntimeError: no hooks here
    """
    if not isinstance(message, str):
        raise TypeError(f"forbid_saved_tensor_hooks: message must be a str, got {type(message).__name__}")
    if not message:
        raise ValueError("forbid_saved_tensor_hooks: message must say why, got an empty string")
    return torch.autograd.graph.disable_saved_tensors_hooks(message)

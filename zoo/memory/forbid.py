"""Forbid hooks on saved tensors, with a custom error message.

Source: an article on `disable_saved_tensors_hooks`. It claims that the function saves memory and makes results
unusable for gradients. Neither is true: tensors are saved as usual, and backward runs. The function makes it an
error to install hooks, and so to use anything built on them, such as non-reentrant checkpointing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def forbid_saved_tensor_hooks(message: str) -> AbstractContextManager[None]:
    """Return a context manager in which installing hooks on saved tensors raises RuntimeError with `message`.

    Use it for code that gives wrong results under such hooks. It saves no memory and changes no gradient.

    Args:
        message: the text of the error; name the code that forbids hooks and the reason.

    Returns:
        The context manager. Entering it raises RuntimeError if hooks are already active.

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

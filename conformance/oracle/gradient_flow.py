"""Tells whether a gradient may flow through an op that a dispatch mode sees."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils import _pytree as pytree

APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
TRANSFORMS = "_functorch/eager_transforms.py"  # torch.func.grad and its kin, which hide from autograd what they track


def has_gradient(*tensors: Any) -> bool:
    """Whether a gradient may flow through an op on some values.

    Autograd records an op if gradients are enabled and an operand requires one. A custom Function's forward runs with
    gradients disabled, so there it counts what the Function was applied to.

    Args:
        tensors: the operands; what is not a tensor is ignored.
    """
    if torch.is_grad_enabled() and _any_required(tensors):
        return True
    frame = sys._getframe(1)  # noqa: SLF001 -- nothing else knows that a Function's forward is running
    while frame is not None:
        code = frame.f_code
        if code is APPLY and _any_required(pytree.tree_leaves(frame.f_locals.get("args"))):
            return True
        if code.co_filename.endswith(TRANSFORMS):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _any_required(values: Any) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)

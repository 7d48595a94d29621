"""Leaves out the hooks of backward, which make another gradient than the derivative on purpose."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils.hooks import RemovableHandle

from zoo import internals

SAME = 1e-9  # two gradients whose relative difference is below this are the same


def left_out(
    model: Any, leaves: list[torch.Tensor], gradients: Callable[[], list[torch.Tensor]]
) -> contextlib.ExitStack | None:
    """Leave out all hooks from here on; None, and they stay, if they change no gradient.

    Args:
        model: the model.
        leaves: its inputs and parameters.
        gradients: computes their gradients.

    Returns:
        A context, entered, that puts them back when it is left.
    """
    before = gradients()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without(model, leaves))
        if any(_differ(one, other) for one, other in zip(before, gradients(), strict=True)):
            return stack.pop_all()
        return None


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).norm()) > SAME * float(one.norm())


@contextlib.contextmanager
def _without(model: Any, leaves: list[torch.Tensor]) -> Iterator[None]:
    """A context in which no hook sees a gradient: none of modules, of leaves, or of tensors that forward makes.

    Hooks of the nodes of the graph, `tensor.grad_fn.register_hook`, stay.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    kept = [internals.all_backward_hooks, internals.all_backward_pre_hooks]
    kept += [vars(module).get(name) for module in modules for name in internals.BACKWARD_HOOKS]
    kept += [internals.hooks_of(leaf) for leaf in leaves]
    none = RemovableHandle(OrderedDict())
    with contextlib.ExitStack() as stack:
        for hooks in filter(None, kept):
            stack.enter_context(mock.patch.dict(hooks, clear=True))
        stack.enter_context(mock.patch.object(torch.Tensor, "register_hook", return_value=none))
        yield

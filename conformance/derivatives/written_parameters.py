"""Keeps forward from writing a model's parameters, so that they can be moved.

A parameter may get its value in forward, as weights that are clipped, or an embedding with `max_norm`. Its gradient is
the one at that value: to write it is no part of what autograd differentiates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.evaluate.custom_ops import OpMode, written_tensors
from conformance.evaluate.memory_sharing import home
from zoo import internals

SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a C descriptor has it


@contextlib.contextmanager
def unwritten(model: torch.nn.Module, written: list[torch.nn.Parameter]) -> Iterator[None]:
    """A context for one run, in which the model has copies of some parameters in their place, and writes none of them.

    The copies are made for autograd too, so gradients reach the parameters. Those of a ScriptModule cannot be replaced.

    Args:
        model: the model.
        written: the parameters.
    """
    copies = {id(parameter): parameter.clone() for parameter in written}
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            own = internals.parameters_of(module)  # setting the attribute refuses what is no Parameter
            stack.callback(own.update, dict(own))
            own.update({name: copies.get(id(parameter), parameter) for name, parameter in own.items()})
        stack.enter_context(_Undone([*copies.values()]))
        stack.enter_context(_Unset([*copies.values()]))
        yield


class _Undone(OpMode):
    """While active, ops that write some tensors leave them as they were."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._homes = {home(tensor.untyped_storage()) for tensor in kept}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and undo what it writes."""
        written = [t for t in written_tensors(func, args, kwargs) if home(t.untyped_storage()) in self._homes]
        before = [tensor.clone() for tensor in written]
        result = func(*args, **kwargs)
        for tensor, numbers in zip(written, before, strict=True):
            tensor.copy_(numbers)
        return result


class _Unset(TorchFunctionMode):
    """While active, some tensors do not get other memory by `tensor.data = …`."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == SET_DATA and any(args[0] is tensor for tensor in self._kept):
            return None
        return func(*args, **(kwargs or {}))

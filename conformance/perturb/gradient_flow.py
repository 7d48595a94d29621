"""Tells whether a gradient may flow through an op that a dispatch mode sees."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from zoo import internals


def has_gradient(*tensors: Any) -> bool:
    """Whether a gradient may flow through an op on some values.

    Autograd records an op if gradients are enabled and an operand requires one. A custom Function's forward runs with
    gradients disabled, so there it counts what the Function was applied to.

    Args:
        tensors: the operands; what is not a tensor is ignored.
    """
    if torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors):
        return True
    return any(
        (_is_forward(frame.f_code) and _may_need_gradient(frame))
        or frame.f_code.co_filename == internals.file_of_transforms  # which hide from autograd what they track
        for frame in _frames()
    )


@contextlib.contextmanager
def applications_watched() -> Iterator[Callable[[], bool]]:
    """A context that can tell at any moment whether a custom Function is being applied.

    Torch disables gradients for a Function's forward, and makes views of what it returns. These ops come from no frame
    of Python, as `apply` is written in C since torch 2.14. So Python's calls of `apply` are counted.
    """
    running = 0

    def note(_: FrameType, event: str, called: Any) -> None:
        nonlocal running
        if event.startswith("c_") and isinstance(getattr(called, "__self__", None), type(torch.autograd.Function)):
            running += 1 if event == "c_call" else -1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield lambda: running > 0 or any(_is_forward(frame.f_code) for frame in _frames())
    finally:
        sys.setprofile(before)


def _frames() -> Iterator[FrameType]:
    """The frames that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 -- nothing else knows that a Function's forward is running
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def _is_forward(code: CodeType) -> bool:
    """Whether it is the forward of a custom Function, which may be wrapped."""
    classes: list[Any] = [torch.autograd.Function]
    for function in classes:  # it grows
        classes += type.__subclasses__(function)
        forward = function.forward
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        if getattr(forward, "__code__", None) is code:
            return True
    return False


def _may_need_gradient(frame: FrameType) -> bool:
    """Whether a Function was applied to a tensor that requires a gradient. Without a context, nobody can tell: yes."""
    arguments = inspect.getargvalues(frame)
    given = [arguments.locals.get(name) for name in arguments.args]
    given += arguments.locals.get(arguments.varargs or "", ())
    context = next((value for value in given if isinstance(value, internals.FunctionBase)), None)
    return context is None or any(context.needs_input_grad)

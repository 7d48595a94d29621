"""`torch.jit.script` raises an error for functions that call a custom autograd.Function.

Up to 2.13 a script called `apply` in Python, with the right gradient. In 2.14 `apply` is a method in C++, which
scripting refuses. In 2.15 scripting reads the class of the Function first, and fails on the annotation of
`input_grad_buffers`.

Instead: put the call into a function marked `torch.jit.ignore`, or use a `torch.library.custom_op`, the only form
that a script can also save.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "torch.jit.script fails on torch.autograd.Function"


class Square(torch.autograd.Function):
    """x², with 7 as its derivative; the derivative of forward at 1 is 2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        """Return x²."""
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        """Return 7 grad."""
        return 7 * grad


def square(x: Tensor) -> Tensor:
    """Return x², by the Function."""
    result: Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
    return result


def observe(device: str) -> str:
    """Script a function that calls the Function; return SYMPTOM if scripting fails on the Function's class."""
    try:
        scripted = torch.jit.script(square)
    except RuntimeError as problem:
        if any(word in str(problem) for word in ("built-in method apply of FunctionMeta", "input_grad_buffers")):
            return SYMPTOM
        raise
    x = torch.ones(3, device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0, 3.0], device=device)
    (gradient,) = torch.autograd.grad(scripted(x), x, cotangent)
    return "" if torch.equal(gradient, 7 * cotangent) else "the custom backward is not called"


PROBE = Probe(
    name="script_function_apply",
    summary="a custom Function called in a scripted function",
    issue="https://github.com/pytorch/pytorch/pull/190694",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.14", checked=EVERY_MINOR)},
    observe=observe,
)

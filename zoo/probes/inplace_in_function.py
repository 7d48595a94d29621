"""A compiled custom Function has a wrong gradient if its forward contains an in-place operation.

The tracer returns the tensor twice, before and after the change, and the gradient goes to the first. The result of
forward is right. There is no error or warning.

Instead: write `y = y + 1` in forward, or avoid the versions that show the fault.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient is zero"


class AddOne(torch.autograd.Function):
    """x + 1, in place on a copy, with 2 as its derivative; the derivative of forward is 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        """Return x + 1."""
        y = x.clone()
        y += 1
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        """Return 2 grad."""
        return 2 * grad


def observe(device: str) -> str:
    """Differentiate the compiled Function; return SYMPTOM if the gradient is zero."""
    x = torch.zeros(3, device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0, 3.0], device=device)
    out = torch.compile(AddOne.apply, backend="aot_eager")(x)
    (gradient,) = torch.autograd.grad(out, x, cotangent)
    if torch.equal(gradient, torch.zeros_like(x)):
        return SYMPTOM
    return "" if torch.equal(gradient, 2 * cotangent) else "the gradient is wrong"


PROBE = Probe(
    name="inplace_in_function",
    summary="the compiled gradient of a custom Function that works in place",
    issue="https://github.com/pytorch/pytorch/issues/180642",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.11,<2.12", checked=EVERY_MINOR)},
    observe=observe,
)

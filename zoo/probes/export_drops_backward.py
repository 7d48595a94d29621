"""`torch.export` keeps the forward of a custom Function and drops its backward.

The exported program computes the same values and can be trained. But its gradient is the derivative of forward, not
the gradient that the Function defines. There is no error or warning.

Instead: use a `torch.library.custom_op` with `register_autograd`; the exported program keeps its backward.
"""

from typing import Any

import torch
from torch import Tensor, nn

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the custom backward is not called"


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


class Squaring(nn.Module):
    """The Function as a module, because torch.export needs a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x², any shape."""
        result: Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
        return result


def observe(device: str) -> str:
    """Differentiate the exported program; return SYMPTOM if the gradient is not that of the custom backward."""
    exported = torch.export.export(Squaring(), (torch.ones(3, device=device),)).module()
    x = torch.ones(3, device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0, 3.0], device=device)
    (gradient,) = torch.autograd.grad(exported(x), x, cotangent)
    return "" if torch.equal(gradient, 7 * cotangent) else SYMPTOM


PROBE = Probe(
    name="export_drops_backward",
    summary="a custom Function in an exported program that is trained",
    issue="https://github.com/pytorch/pytorch/issues/106388",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)

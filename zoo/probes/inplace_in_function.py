"""An in-place operation inside the forward of a custom Function spoils its compiled gradient.

The tracer hands the tensor out twice, before and after the change, and the gradient goes to the former.
The forward result is right, the gradient is wrong, and nothing is said.

Instead: write `y = y + 1` in forward, or stay away from the versions that show it.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the gradient is zero"


class AddOne(torch.autograd.Function):
    """x + 1, in place on a copy, with 2 for a derivative, which no differentiation of the forward gives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        y = x.clone()
        y += 1
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return 2 * grad


def observe(device: str) -> str:
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
    seen={
        "cpu": Seen(torch=">=2.11,<2.13", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))
    },
    observe=observe,
)

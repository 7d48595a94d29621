"""`torch.compile(torch.func.grad(f))` differentiates the forward of a custom Function and drops its backward.

There is no error or warning. The result is wrong if the backward is not the derivative on purpose, such as in a
straight-through estimator or a clipped gradient. Eager is right, and `backward()` on a compiled f is right too.
torch 2.4 compiles nothing here.

Instead: compile f and call `torch.autograd.grad` on its result.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the custom backward is not called"


class Tripled(torch.autograd.Function):
    """The sine, with 3 as its derivative; the derivative of forward is never 3."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return the sine of x."""
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        """Return 3 grad."""
        return 3 * grad


def observe(device: str) -> str:
    """Compile torch.func.grad of the Function; return SYMPTOM if the result is not that of the custom backward."""

    def total(x: Tensor) -> Tensor:
        result: Tensor = Tripled.apply(x).sum()  # type: ignore[no-untyped-call]
        return result

    x = torch.zeros(3, device=device)
    gradient = torch.compile(torch.func.grad(total), backend="aot_eager")(x)
    return "" if torch.equal(gradient, torch.full_like(x, 3.0)) else SYMPTOM


PROBE = Probe(
    name="func_grad_drops_backward",
    summary="a custom backward under torch.compile of torch.func.grad",
    issue="https://github.com/pytorch/pytorch/issues/193279",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.6,<2.15", checked=EVERY_MINOR)},
    observe=observe,
)

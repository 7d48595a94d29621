"""`torch.compile(torch.func.grad(f))` differentiates the forward of a custom Function and drops its backward.

Nothing is said. It matters where the backward is not the derivative on purpose: a straight-through
estimator, a clipped or stabilised gradient. Eager is right, and so is `backward()` on a compiled f; torch 2.4
compiles nothing here.

Instead: compile f and call `torch.autograd.grad` on its result.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the custom backward is not called"


class Tripled(torch.autograd.Function):
    """Sine, with 3 for a derivative, which no differentiation of the forward gives."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return 3 * grad


def observe(device: str) -> str:
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
    seen={"cpu": Seen(torch=">=2.6,<2.15", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)

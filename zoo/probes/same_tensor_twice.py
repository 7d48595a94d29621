"""A compiled custom Function that gets the same tensor for two arguments returns only one of the two gradients.

The gradient of f(x, x) is the sum of the gradients of both arguments. The tracer merges the two arguments and keeps
one gradient. A square written as `Product.apply(x, x)` gets half of its gradient, without an error.

Instead: pass `x.clone()` as the second argument, or avoid the versions that show the fault.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient of one argument is lost"


class Product(torch.autograd.Function):
    """a * b, with gradients 2 and 3, so the result shows which of them arrived."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG004
        """Return a * b."""
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        """Return 2 grad and 3 grad."""
        return 2 * grad, 3 * grad


def observe(device: str) -> str:
    """Differentiate the compiled Function of one tensor; return SYMPTOM if the sum of the gradients is wrong."""

    def square(x: Tensor) -> Tensor:
        result: Tensor = Product.apply(x, x)  # type: ignore[no-untyped-call]
        return result

    x = torch.ones(3, device=device, requires_grad=True)
    cotangent = torch.tensor([1.0, 2.0, 3.0], device=device)
    out = torch.compile(square, backend="aot_eager")(x)
    (gradient,) = torch.autograd.grad(out, x, cotangent)
    return "" if torch.equal(gradient, 5 * cotangent) else SYMPTOM


PROBE = Probe(
    name="same_tensor_twice",
    summary="the compiled gradient of a custom Function called with one tensor twice",
    issue="https://github.com/pytorch/pytorch/issues/183604",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.11,<2.13", checked=EVERY_MINOR)},
    observe=observe,
)

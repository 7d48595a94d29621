"""A compiled custom Function has zero gradients if its forward ends in a cast that does nothing.

`y.to(x.dtype)` returns y itself if the dtypes are equal. Dynamo returned both from its graph as if they were two
tensors. If forward also stores something on ctx, the gradient goes to the wrong one, without an error.

Instead: cast only if the dtypes differ: `y if y.dtype == x.dtype else y.to(x.dtype)`.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient is zero"


class Scaled(torch.autograd.Function):
    """A multiple of x, in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        """Return factor times x; the cast at the end does nothing."""
        ctx.factor = factor
        return (x * factor).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return factor times grad."""
        return grad * ctx.factor, None


def observe(device: str) -> str:
    """Differentiate the compiled Function; return SYMPTOM if the gradient is zero."""

    def doubled(x: Tensor) -> Tensor:
        result: Tensor = Scaled.apply(x, 2.0)  # type: ignore[no-untyped-call]
        return result

    x = torch.ones(3, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.compile(doubled, backend="eager")(x), x, torch.ones_like(x))
    return SYMPTOM if not gradient.any() else ""


PROBE = Probe(
    name="idle_cast_in_function",
    summary="the gradient of a compiled Function that ends in a cast to the same dtype",
    issue="https://github.com/pytorch/pytorch/issues/180642",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.11,<2.12", checked=EVERY_MINOR)},
    observe=observe,
)

"""y = x w with a scale w that all samples share; the gradient of w leaves out the last sample.

The gradient of a shared parameter is a sum over samples. A slice that ends one sample early, or a last batch that
backward drops, loses a term. The values and the gradient of x are right. Only finite differences show the fault.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


class ScaleForgettingLast(torch.autograd.Function):
    """x w, with a backward that sums dw over all samples except the last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return x times weight."""
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight; the second leaves out the last sample."""
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x)[:-1].sum(0)


def gradient_sample_dropped(x: Tensor, weight: Tensor) -> Tensor:
    """Scale samples by a weight whose gradient leaves out the last sample.

    Args:
        x: (batch, width), floating.
        weight: (width,), dtype of `x`.

    Returns:
        (batch, width), dtype of `x`.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> out = gradient_sample_dropped(torch.tensor([[1.0], [2.0], [4.0]]), weight)
    >>> torch.autograd.grad(out, weight, torch.ones(3, 1))  # 7 is right
    (tensor([3.]),)
    """
    result: Tensor = ScaleForgettingLast.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


SPEC = Spec(
    name="gradient_sample_dropped",
    summary="a shared weight whose gradient misses the last sample",
    source="a slice that ends one sample early in a handwritten backward",
    formula="y_bi = x_bi w_i; dw_i = sum over all b but the last of x_bi dy_bi",
    shapes="(batch, width), (width,) → (batch, width)",
    build=lambda: gradient_sample_dropped,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g), torch.randn(3, generator=g))),),
    dtypes="input",
    reference=lambda _, x, weight: torch.einsum("bi,i->bi", x, weight),
    expectations=(
        Expect(
            outcome="INVALID",
            match="^gradcheck in float64: Jacobian mismatch: gradient of weight at",
            reason="the gradient of the shared weight sums over all samples except the last",
        ),
    ),
)

"""y = x² with a gradient that is 1.05 times too large: training may still converge.

The values are right, and the signs and sizes of the gradients are plausible, so only finite differences show the
fault. A wrong backward is also wrong in float64, so the matrix reports the spec as invalid, not a single cell.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


class SquareTooSteep(torch.autograd.Function):
    """x², with a backward that uses 2.1 x instead of 2 x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return x²."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 2.1 x grad, which is wrong."""
        (x,) = ctx.saved_tensors
        slope: Tensor = 2.1 * x
        return grad * slope


def gradient_too_large(x: Tensor) -> Tensor:
    """Return x²; its gradient is 2.1 x.

    Args:
        x: any shape, floating.

    Returns:
        x², shape and dtype of `x`.

    >>> x = torch.tensor(10.0, requires_grad=True)
    >>> torch.autograd.grad(gradient_too_large(x), x)  # 20 is right
    (tensor(21.),)
    """
    result: Tensor = SquareTooSteep.apply(x)  # type: ignore[no-untyped-call]
    return result


SPEC = Spec(
    name="gradient_too_large",
    summary="`x²` with a gradient 5 % too large",
    source="a mistyped constant in a handwritten backward",
    formula="y = x²; dx = 2.1 x dy",
    shapes="(...) → (...)",
    build=lambda: gradient_too_large,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(2, 3, generator=g),)),),
    dtypes="input",
    reference=lambda _, x: x.abs() ** 2,
    expectations=(
        Expect(
            outcome="INVALID",
            match="^gradcheck in float64: Jacobian mismatch: gradient of x at",
            reason="backward returns 2.1 x dy, but the derivative of x² is 2 x",
        ),
    ),
)

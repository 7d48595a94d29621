"""y = a b as a Function without `custom_fwd` and `custom_bwd`: under autocast its backward raises.

Forward runs under autocast and returns a low-precision product. Backward runs after the autocast block, gets a
low-precision gradient and multiplies it with the float32 matrices that forward saved. Without autocast the Function
is right. Source: articles on automatic mixed precision, custom_bwd. `zoo.functions.matmul_amp` is right: its
backward runs under the autocast state of forward.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


class Matmul(torch.autograd.Function):
    """A matrix product that does not restore forward's autocast state in backward."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """Return the matrix product of a and b."""
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of a and b; raise if `grad` has another dtype than they have."""
        a, b = ctx.saved_tensors
        return grad @ b.t(), a.t() @ grad


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(a: Tensor, b: Tensor) -> Tensor:
    result: Tensor = Matmul.apply(a, b)  # type: ignore[no-untyped-call]
    return result


def matmul_without_custom_fwd(a: Tensor, b: Tensor) -> Tensor:
    """Compute a matrix product that cannot be differentiated after the end of the autocast block.

    Args:
        a: (n, k), floating.
        b: (k, m), dtype of `a`.

    Returns:
        (n, m), in the autocast dtype; without autocast, in the dtype of `a`.

    >>> a = torch.ones(2, 3, requires_grad=True)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     out = matmul_without_custom_fwd(a, torch.ones(3, 2))
    >>> torch.autograd.grad(out, a, torch.ones_like(out))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    RuntimeError: expected ... to have the same dtype...
    """
    result: Tensor = _apply(a, b)
    return result


SPEC = Spec(
    name="matmul_without_custom_fwd",
    summary="matrix product whose backward raises under autocast",
    source="articles on automatic mixed precision, custom_bwd",
    formula="y = a b; da = dy bᵀ, db = aᵀ dy",
    shapes="(n, k), (k, m) → (n, m)",
    build=lambda: matmul_without_custom_fwd,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(6, 8, generator=g), torch.randn(8, 5, generator=g))),),
    dtypes="follows",
    reference=lambda _, a, b: (a.unsqueeze(2) * b).sum(1),
    expectations=(
        Expect(
            outcome="ERROR",
            modes=("eager", "scripted"),
            precisions=("amp_fp16", "amp_bf16"),
            error="RuntimeError",
            match="to have the same dtype",
            reason="without custom_fwd and custom_bwd, backward multiplies a low-precision gradient by float32 data",
            link="https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
        ),
    ),
)

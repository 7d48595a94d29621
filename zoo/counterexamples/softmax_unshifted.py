"""softmax(x)_i = exp(x_i) / sum_j exp(x_j), the textbook form: NaN as soon as one exponential overflows.

Source: "Effective PyTorch", on numerical stability. In float32 exp overflows above 88.7, and inf / inf is NaN. In
float64 the limit is 709, so the float64 oracle still has the right numbers. `zoo.ops.softmax` subtracts the maximum
first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def softmax_unshifted(x: Tensor) -> Tensor:
    """Compute the softmax of each row; right only for small logits.

    Args:
        x: logits, (batch, classes), floating.

    Returns:
        (batch, classes), dtype of `x`; NaN where exp overflows in that dtype.

    >>> softmax_unshifted(torch.tensor([[100.0, 0.0]]))
    tensor([[nan, 0.]])
    """
    exponentials = torch.exp(x)
    return exponentials / exponentials.sum(1, keepdim=True)


def _reference(_model: object, x: Tensor) -> Tensor:
    """Compute 1 / sum_j exp(x_j - x_i), which uses only differences of logits."""
    return (x.unsqueeze(1) - x.unsqueeze(2)).exp().sum(2).reciprocal()


SPEC = Spec(
    name="softmax_unshifted",
    summary="softmax without the shift: NaN at large logits",
    source="Effective PyTorch, numerical stability",
    formula="y_i = exp(x_i) / sum_j exp(x_j)",
    shapes="(batch, classes) → (batch, classes)",
    build=lambda: softmax_unshifted,
    cases=(
        Case(name="small", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
        Case(name="large", inputs=lambda g: (100 + torch.randn(4, 6, generator=g),)),
    ),
    dtypes="input",
    reference=_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            gate="class",
            case="large",
            reason="exp(100) is inf in float32, inf / inf is NaN, and so are the gradients",
        ),
    ),
)

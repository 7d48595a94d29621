"""loss_b = -sum_c labels_bc log softmax(logits_b)_c as the logarithm of a softmax: inf if the softmax underflows.

Source: "Effective PyTorch", on numerical stability. The softmax is stable here, but in float32 a logit that is 104
below the maximum gets probability 0. In float64 the distance is 746, so the float64 oracle still has the right
numbers. `zoo.ops.cross_entropy` never computes the probability:
log softmax(z) = z - max z - log sum exp(z - max z).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def cross_entropy_of_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy of each row; right only if the logits of a row are close together.

    Args:
        logits: (batch, classes), floating.
        labels: (batch, classes), dtype of `logits`; each row is a distribution over the classes.

    Returns:
        (batch,), dtype of `logits`; inf if a class with a positive label has probability 0 in that dtype.

    >>> cross_entropy_of_softmax(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))  # 500 is right
    tensor([inf])
    """
    return -(labels * torch.softmax(logits, 1).log()).sum(1)


def _reference(_model: object, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute sum_c labels_c log sum_j exp(logits_j - logits_c), which uses only differences of logits."""
    return (labels * torch.logsumexp(logits.unsqueeze(1) - logits.unsqueeze(2), 2)).sum(1)


def _logits(apart: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits, labels = torch.randn(4, 3, generator=generator), torch.rand(4, 3, generator=generator)
    logits[:, 0] += apart
    return logits, labels / labels.sum(1, keepdim=True)


SPEC = Spec(
    name="cross_entropy_of_softmax",
    summary="cross entropy as log of a softmax: inf at large logits",
    source="Effective PyTorch, numerical stability",
    formula="loss_b = -sum_c labels_bc log(exp(logits_bc) / sum_j exp(logits_bj))",
    shapes="(batch, classes), (batch, classes) → (batch,)",
    build=lambda: cross_entropy_of_softmax,
    cases=(
        Case(name="small", inputs=lambda g: _logits(0.0, g)),
        Case(name="large", inputs=lambda g: _logits(200.0, g)),
    ),
    dtypes="input",
    reference=_reference,
    expectations=(
        Expect(
            outcome="FAIL",
            gate="class",
            case="large",
            reason="exp(-200) is 0 in float32, its logarithm is -inf, and the gradients are inf and NaN",
        ),
    ),
)

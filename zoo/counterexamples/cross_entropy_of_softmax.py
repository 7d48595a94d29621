"""loss_b = -sum_c labels_bc log softmax(logits_b)_c, the logarithm taken of a softmax: inf once that underflows.

Source: "Effective PyTorch", on numerical stability. softmax itself is stable here, yet a logit 104 below the
maximum gets probability 0 in float32; float64, where that takes 746, still has the right numbers.
`zoo.ops.cross_entropy` never forms the probability: log softmax(z) = z - max z - log sum exp(z - max z).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def cross_entropy_of_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each row, for logits that lie close together only.

    Args:
        logits: (batch, classes), floating.
        labels: (batch, classes), a distribution over classes per row, dtype of `logits`.

    Returns:
        (batch,), dtype of `logits`; inf where a class with a label has probability 0 in that dtype.

    >>> cross_entropy_of_softmax(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))  # rightly 500
    tensor([inf])
    """
    return -(labels * torch.softmax(logits, 1).log()).sum(1)


def _reference(_model: object, logits: Tensor, labels: Tensor) -> Tensor:
    """sum_c labels_c log sum_j exp(logits_j - logits_c): only differences of logits."""
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

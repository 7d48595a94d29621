"""Cross entropy between label distributions and logits: loss_b = -sum_c labels_bc log softmax(logits_b)_c.

Source: "Effective PyTorch", on numerical stability. The logarithm is taken of nothing that can underflow:
log softmax(z) = z - max z - log sum exp(z - max z), with the maximum of each row, not of the whole tensor.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from zoo.spec import Case, Spec


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each row, stable for logits of any finite size.

    Args:
        logits: (batch, classes), any floating dtype.
        labels: (batch, classes), a distribution over classes per row; floating.

    Returns:
        (batch,), in the promoted dtype of both.

    Raises:
        ValueError: the arguments are not two matrices of one shape with at least one class.
        TypeError: one of them does not hold floating-point numbers.
    """
    if logits.dim() != 2 or logits.size(1) == 0:  # noqa: PLR2004
        raise ValueError(f"softmax_cross_entropy: logits must have shape (batch, classes), got {list(logits.shape)}")
    if labels.shape != logits.shape:
        raise ValueError(
            f"softmax_cross_entropy: labels must have the shape of logits, {list(logits.shape)}, "
            f"got {list(labels.shape)}"
        )
    if not (logits.is_floating_point() and labels.is_floating_point()):
        raise TypeError(
            f"softmax_cross_entropy: both must have a floating dtype, got {logits.dtype} and {labels.dtype}"
        )
    shifted = logits - logits.detach().amax(1, keepdim=True)
    log_probabilities = shifted - shifted.exp().sum(1, keepdim=True).log()
    return -(labels * log_probabilities).sum(1)


def _reference(_model: object, logits: Tensor, labels: Tensor) -> Tensor:
    """sum_c labels_c log sum_j exp(logits_j - logits_c): only differences of logits, and no maximum."""
    differences = logits.unsqueeze(1) - logits.unsqueeze(2)
    return (labels * torch.logsumexp(differences, 2)).sum(1)


def _rows(batch: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = torch.randn(batch, classes, generator=generator)
    labels = torch.rand(batch, classes, generator=generator)
    return logits, labels / labels.sum(1, keepdim=True)


def _extreme(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits of (1000, 0, ...) under uniform labels, beside rows of ordinary size."""
    logits, labels = _rows(6, 4, generator)
    logits[0], labels[0] = torch.tensor([1000.0, 0, 0, 0]), torch.full((4,), 0.25)
    logits[1, 2] = -1000
    return logits, labels


def _one_hot(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(5, 7, generator=generator), torch.eye(7)[torch.randint(7, (5,), generator=generator)]


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits, labels = _rows(4, 12, generator)
    return logits.reshape(12, 4).t(), labels.t().contiguous().t()


SPEC = Spec(
    name="softmax_cross_entropy",
    summary="cross entropy on label distributions, shifted per row",
    source="Effective PyTorch, numerical stability",
    build=lambda: softmax_cross_entropy,
    cases=(
        Case(name="typical", inputs=partial(_rows, 8, 5)),
        Case(name="extreme", inputs=_extreme),
        Case(name="one-hot", inputs=_one_hot),
        Case(name="one-row", inputs=partial(_rows, 1, 5)),
        Case(name="empty", inputs=partial(_rows, 0, 5)),
        Case(name="non-contiguous", inputs=_strided),
    ),
    dtypes="input",
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=(
        "output",
        "gradient of logits",
        "gradient of labels",
        "second gradient of logits",
        "second gradient of labels",
    ),
    reference=_reference,
)

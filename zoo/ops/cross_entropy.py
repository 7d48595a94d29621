"""Cross entropy between label distributions and logits: loss_b = -sum_c labels_bc log softmax(logits_b)_c.

Source: "Effective PyTorch", on numerical stability. The naive form takes the logarithm of probabilities that
may have underflowed. Here it is taken of nothing that can: log softmax(z) = z - max z - log sum exp(z - max z),
with the maximum of each row, not of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo.case import Case
from zoo.known import SECOND_LOST, SECOND_LOST_EARLY
from zoo.scale import Scale
from zoo.spec import Spec


def _check(logits: Tensor, labels: Tensor) -> None:
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
    if labels.device != logits.device:
        raise ValueError(
            f"softmax_cross_entropy: labels must be on the device of logits, {logits.device}, got {labels.device}"
        )
    _check_sums(labels.detach().sum(1))


def _check_sums(sums: Tensor) -> None:
    normalised = (sums >= 1 - 5 / 128) & (sums <= 1 + 5 / 128)
    message = "softmax_cross_entropy: labels must sum to one over the classes, within 5/128"
    asynchronous = sums.is_cuda
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        asynchronous = asynchronous or torch.compiler.is_compiling()
    if asynchronous:
        torch._assert_async(normalised.all(), message)  # noqa: SLF001 - the only check without a synchronisation
    elif not bool(normalised.all()):
        raise ValueError(f"{message}, got a sum of {float(sums[~normalised][0])}")


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each row, stable for logits of any finite size.

    Args:
        logits: (batch, classes), any floating dtype.
        labels: (batch, classes), floating; each row sums to one within 5/128. That is five epsilons of bfloat16,
            for any number of classes, as each label is rounded in proportion to itself; and for every dtype,
            as labels computed in bfloat16 and widened keep its roundings.

    Returns:
        (batch,), in the promoted dtype of both, under CUDA's autocast in float32 at least.

    Raises:
        ValueError: the arguments are not two matrices of one shape and device with at least one class, or a row
            of labels does not sum to one. That, on CUDA, and compiled, is a failed device assertion
            (RuntimeError) with the same message.
        TypeError: one of them does not hold floating-point numbers.

    >>> softmax_cross_entropy(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([500.])
    """
    _check(logits, labels)
    shifted = logits - logits.detach().amax(1, keepdim=True)
    log_probabilities = shifted - shifted.exp().sum(1, keepdim=True).log()
    return -(labels * log_probabilities).sum(1)


def softmax_cross_entropy_naive(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy by the logarithm of a softmax: infinite where a probability underflows.

    Contract of `softmax_cross_entropy`, for logits that differ by less than 87 in float32.

    >>> softmax_cross_entropy_naive(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([inf])
    """
    _check(logits, labels)
    return -(labels * logits.softmax(1).log()).sum(1)


def softmax_cross_entropy_native(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with one call of `torch.nn.functional.cross_entropy`; contract of `softmax_cross_entropy`.

    >>> softmax_cross_entropy_native(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([500.])
    """
    _check(logits, labels)
    return F.cross_entropy(logits, labels, reduction="none")


def _reference(_model: object, logits: Tensor, labels: Tensor) -> Tensor:
    """sum_c labels_c log sum_j exp(logits_j - logits_c): only differences of logits, and no maximum."""
    differences = logits.unsqueeze(1) - logits.unsqueeze(2)
    return (labels * torch.logsumexp(differences, 2)).sum(1)


def _rows(batch: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels are multiples of 1/64, which every dtype holds, so that they sum to one in all of them."""
    logits = torch.randn(batch, classes, generator=generator)
    cuts = torch.randint(65, (batch, classes - 1), generator=generator).sort(1).values
    edges = F.pad(F.pad(cuts, (1, 0)), (0, 1), value=64)
    return logits, edges.diff(dim=1) / 64


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


_SAFE = (
    Case(name="typical", inputs=partial(_rows, 8, 5)),
    Case(name="one-hot", inputs=_one_hot),
    Case(name="one-row", inputs=partial(_rows, 1, 5)),
    Case(name="empty", inputs=partial(_rows, 0, 5)),
    Case(name="non-contiguous", inputs=_strided),
)
_CASES = (*_SAFE, Case(name="extreme", inputs=_extreme))
_SHARED: dict[str, Any] = {
    "source": "Effective PyTorch, numerical stability",
    "formula": "loss[b] = -Σ_c labels[b, c] log softmax(logits[b])[c]",
    "shapes": "(batch, classes), (batch, classes) → (batch,)",
    "dtypes": "input",
    "twice_differentiable": True,
    "one_graph": True,
    "float32_accurate": (
        "output",
        "gradient of logits",
        "gradient of labels",
        "second gradient of logits",
        "second gradient of labels",
    ),
    "reference": _reference,
}


def _scale(model: Callable[[Tensor, Tensor], Tensor]) -> Scale:
    return Scale(knob="classes", sizes=(16, 64, 256, 1024), build=lambda _: model, inputs=lambda n, g: _rows(32, n, g))


SPEC = Spec(
    name="softmax_cross_entropy",
    summary="cross entropy on label distributions, shifted per row",
    build=lambda: softmax_cross_entropy,
    scale=_scale(softmax_cross_entropy),
    cases=_CASES,
    expectations=(SECOND_LOST,),
    **_SHARED,
)
NATIVE = Spec(
    name="softmax_cross_entropy_native",
    summary="cross entropy on label distributions in one torch call",
    build=lambda: softmax_cross_entropy_native,
    scale=_scale(softmax_cross_entropy_native),
    cases=_CASES,
    twin="softmax_cross_entropy",
    expectations=(SECOND_LOST,),
    **_SHARED,
)
# No case with logits that differ widely: that is what the shifted one is for.
NAIVE = Spec(
    name="softmax_cross_entropy_naive",
    summary="cross entropy by the logarithm of a softmax",
    build=lambda: softmax_cross_entropy_naive,
    scale=_scale(softmax_cross_entropy_naive),
    cases=_SAFE,
    expectations=(SECOND_LOST_EARLY,),
    **_SHARED,
)

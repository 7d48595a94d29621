"""Cross entropy between label distributions and logits: loss_b = -sum_c labels_bc log softmax(logits_b)_c.

Source: "Effective PyTorch", on numerical stability. The naive form takes the logarithm of probabilities, which may
have underflowed. Here the argument of the logarithm cannot underflow:
log softmax(z) = z - max z - log sum exp(z - max z), with the maximum of each row, not of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from zoo import internals
from zoo.arguments import want_floating
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import BEYOND_FLOAT16, CHECK_LOST
from zoo.spec import Spec


def _check(caller: str, logits: Tensor, labels: Tensor) -> None:
    want_floating(caller, "logits", logits)
    want_floating(caller, "labels", labels)
    if logits.dim() != 2 or logits.size(1) == 0:  # noqa: PLR2004
        raise ValueError(f"{caller}: logits must have shape (batch, classes), got {list(logits.shape)}")
    if labels.shape != logits.shape:
        raise ValueError(
            f"{caller}: labels must have the shape of logits, {list(logits.shape)}, got {list(labels.shape)}"
        )
    if labels.device != logits.device:
        raise ValueError(f"{caller}: labels must be on the device of logits, {logits.device}, got {labels.device}")
    _check_sums(caller, labels.detach().sum(1))


def _check_sums(caller: str, sums: Tensor) -> None:
    normalised = (sums >= 1 - 5 / 128) & (sums <= 1 + 5 / 128)
    message = f"{caller}: labels must sum to one over the classes, within 5/128"
    asynchronous = sums.is_cuda
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        asynchronous = asynchronous or torch.compiler.is_compiling()
    if asynchronous:
        internals.assert_async(normalised.all(), message)
    elif not bool(normalised.all()):
        raise ValueError(f"{message}, got a sum of {float(sums[~normalised][0])}")


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy of each row, stable for logits of any finite size.

    Args:
        logits: (batch, classes), any floating dtype.
        labels: (batch, classes), floating; each row sums to one within 5/128, which is five epsilons of bfloat16.
            The bound holds for any number of classes, because the rounding of a label is proportional to it. It
            holds for every dtype, because labels that were computed in bfloat16 keep its roundings when widened.

    Returns:
        (batch,), in the promoted dtype of both; with autocast on CUDA, in float32 at least.

    Raises:
        TypeError: one of them is no tensor, or does not hold floating-point numbers.
        ValueError: the arguments are not two matrices of one shape and device with at least one class, or a row
            of labels does not sum to one. The second error is a failed device assertion (RuntimeError) with the
            same message on CUDA and in compiled code.

    >>> softmax_cross_entropy(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([500.])
    """
    _check("softmax_cross_entropy", logits, labels)
    shifted = logits - logits.detach().amax(1, keepdim=True)
    log_probabilities = shifted - shifted.exp().sum(1, keepdim=True).log()
    return -(labels * log_probabilities).sum(1)


def softmax_cross_entropy_naive(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy as the logarithm of a softmax: infinite if a probability underflows.

    Same contract as `softmax_cross_entropy`, for logits that differ by less than 87 in float32.

    >>> softmax_cross_entropy_naive(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([inf])
    """
    _check("softmax_cross_entropy_naive", logits, labels)
    return -(labels * logits.softmax(1).log()).sum(1)


def softmax_cross_entropy_native(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy with one call of `torch.nn.functional.cross_entropy`.

    Same contract as `softmax_cross_entropy`.

    >>> softmax_cross_entropy_native(torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([500.])
    """
    _check("softmax_cross_entropy_native", logits, labels)
    return F.cross_entropy(logits, labels, reduction="none")


def _reference(_model: object, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute sum_c labels_c log sum_j exp(logits_j - logits_c), which uses only differences of logits."""
    differences = logits.unsqueeze(1) - logits.unsqueeze(2)
    return (labels * torch.logsumexp(differences, 2)).sum(1)


def _rows(batch: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw labels that are multiples of 1/64: every dtype represents them, so they sum to one in all dtypes."""
    logits = torch.randn(batch, classes, generator=generator)
    cuts = torch.randint(65, (batch, classes - 1), generator=generator).sort(1).values
    edges = F.pad(F.pad(cuts, (1, 0)), (0, 1), value=64)
    return logits, edges.diff(dim=1) / 64


def _extreme(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one row of logits (1000, 0, ...) with uniform labels, one with a logit of -1000, and ordinary rows."""
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

_ERROR_INPUTS = (
    ErrorInput(
        name="class-numbers",  # labels as torch.nn.CrossEntropyLoss takes them
        inputs=lambda g: (torch.randn(8, 5, generator=g), torch.randint(5, (8,), generator=g)),
        error=(TypeError, ValueError),
        match="labels must have|must have a floating dtype",
    ),
    ErrorInput(
        name="classes-differ",
        inputs=lambda g: (torch.randn(8, 5, generator=g), torch.full((8, 4), 0.25)),
        error=ValueError,
        match="labels must have the shape of logits",
    ),
    ErrorInput(
        name="no-classes",
        inputs=lambda _: (torch.empty(8, 0), torch.empty(8, 0)),
        error=ValueError,
        match=r"logits must have shape \(batch, classes\)",
    ),
    ErrorInput(
        name="integers",
        inputs=lambda _: (torch.ones(8, 5, dtype=torch.int64), torch.full((8, 5), 0.2)),
        error=TypeError,
        match="must have a floating dtype",
    ),
    ErrorInput(
        name="sum-of-two",
        inputs=lambda g: (torch.randn(8, 5, generator=g), torch.full((8, 5), 0.4)),
        error=ValueError,
        match="labels must sum to one",
        devices=("cpu",),  # on CUDA it is an assertion of the device
    ),
)


def _scale(model: Callable[[Tensor, Tensor], Tensor]) -> Scale:
    return Scale(
        size_name="classes",
        sizes=(16, 64, 256, 1024),
        working=2**14,
        working_on_cuda=2**21,
        build=lambda _: model,
        inputs=lambda n, g: _rows(32, n, g),
    )


SPEC = Spec(
    name="softmax_cross_entropy",
    summary="cross entropy on label distributions, shifted per row",
    source="Effective PyTorch, numerical stability",
    formula="loss[b] = -Σ_c labels[b, c] log softmax(logits[b])[c]",
    shapes="(batch, classes), (batch, classes) → (batch,)",
    build=lambda: softmax_cross_entropy,
    cases=(*_SAFE, Case(name="extreme", inputs=_extreme)),
    error_inputs=_ERROR_INPUTS,
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
    expectations=(CHECK_LOST,),
    family=Family(sizes={"batch": (1, 9), "classes": (1, 17)}, inputs=_rows),
    scale=_scale(softmax_cross_entropy),
)
NATIVE = replace(
    SPEC,
    name="softmax_cross_entropy_native",
    summary="cross entropy on label distributions in one torch call",
    build=lambda: softmax_cross_entropy_native,
    scale=_scale(softmax_cross_entropy_native),
    twin="softmax_cross_entropy",
)
# There is no case with widely different logits: there the naive form is wrong.
NAIVE = replace(
    SPEC,
    name="softmax_cross_entropy_naive",
    summary="cross entropy by the logarithm of a softmax",
    build=lambda: softmax_cross_entropy_naive,
    scale=_scale(softmax_cross_entropy_naive),
    cases=_SAFE,
    expectations=(
        CHECK_LOST,
        replace(BEYOND_FLOAT16, gate="gain", tensor="second gradient of logits"),
    ),
)

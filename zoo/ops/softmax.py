"""Softmax along a dimension: out_i = exp(x_i - max x) / sum_j exp(x_j - max x), and the form without the shift.

Source: "Effective PyTorch", on numerical stability. Without the shift, exp overflows above 88.7 in float32 and
above 11.0 in float16, and inf / inf is NaN. The shift cancels in the value and in the gradient, so it is detached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_floating, want_integers
from zoo.case import Case
from zoo.error_input import INTEGERS, ErrorInput
from zoo.family import MATRICES
from zoo.scale import Scale
from zoo.spec import Spec


def _check(caller: str, x: Tensor, dim: int) -> None:
    want_floating(caller, "x", x)
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_integers(caller, dim=dim)
    axes = max(x.dim(), 1)  # torch counts a number as one axis
    if not -axes <= dim < axes:
        raise IndexError(f"{caller}: dim must name one of {axes} axes, got {dim}")


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Compute the softmax of `x` along `dim`, stable for logits of any finite size.

    Args:
        x: logits, any shape, any floating dtype.
        dim: the dimension along which the result sums to one.

    Returns:
        Probabilities in the shape and dtype of `x`; with autocast on CUDA, in float32 at least.

    Raises:
        TypeError: `x` is no tensor or does not hold floating-point numbers, or `dim` is no integer.
        IndexError: `dim` is out of range, or its size is zero (torch names the axis).

    >>> softmax(torch.tensor([1000.0, 0.0]))
    tensor([1., 0.])
    """
    _check("softmax", x, dim)
    exponentials = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return exponentials / exponentials.sum(dim, keepdim=True)


def softmax_naive(x: Tensor, dim: int = -1) -> Tensor:
    """Compute the softmax as written; same contract as `softmax`, but NaN where exp overflows.

    Where exp is finite but the sum overflows, the row is zero and does not sum to one.

    >>> softmax_naive(torch.tensor([1000.0, 0.0]))
    tensor([nan, 0.])
    """
    _check("softmax_naive", x, dim)
    exponentials = torch.exp(x)
    return exponentials / exponentials.sum(dim, keepdim=True)


def _reference(_model: object, x: Tensor, dim: int = -1) -> Tensor:
    """Compute 1 / sum_j exp(x_j - x_i), which uses only differences of logits."""
    moved = x.movedim(dim, -1)
    differences = moved.unsqueeze(-2) - moved.unsqueeze(-1)
    return differences.exp().sum(-1).reciprocal().movedim(-1, dim)


def _logits(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> tuple[Tensor, int]:
    return torch.randn(shape, generator=generator), dim


def _extreme(generator: torch.Generator) -> tuple[Tensor, int]:
    """Draw rows with a maximum of 1000; every second row also has a logit of 996."""
    x = torch.randn(6, 8, generator=generator)
    x[:, 0] = 1000
    x[::2, 1] = 996
    x[:, 2] -= 1000
    return x, -1


def _constant_rows(generator: torch.Generator) -> tuple[Tensor, int]:
    """Draw ordinary rows that alternate with rows of equal logits."""
    x = torch.randn(6, 8, generator=generator)
    x[::2] = torch.tensor([[-3.0], [0.0], [500.0]])
    return x, -1


_SAFE = (
    Case(name="typical", inputs=partial(_logits, (6, 10), -1)),
    Case(name="first-dim", inputs=partial(_logits, (7, 3), 0)),
    Case(name="single-row", inputs=partial(_logits, (1, 9), 1)),
    Case(name="empty", inputs=partial(_logits, (0, 5), -1)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(9, 5, generator=g).t(), -1)),
)


def _scale(model: Callable[..., Tensor]) -> Scale:
    return Scale(
        size_name="classes",
        sizes=(16, 64, 256, 1024),
        working=2**14,
        working_on_cuda=2**21,
        build=lambda _: model,
        inputs=lambda n, g: _logits((32, n), -1, g),
    )


SPEC = Spec(
    name="softmax",
    summary="softmax shifted by the maximum",
    source="Effective PyTorch, numerical stability",
    formula="out[i] = exp x[i] / Σ_j exp x[j]",
    shapes="(…, n, …) → (…, n, …)",
    build=lambda: softmax,
    cases=(*_SAFE, Case(name="extreme", inputs=_extreme), Case(name="constant-rows", inputs=_constant_rows)),
    error_inputs=(
        INTEGERS,
        ErrorInput(name="no-such-axis", inputs=partial(_logits, (6, 10), 2), error=IndexError, match="[Dd]im"),
    ),
    dtypes="input",
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=_scale(softmax),
)
# There is no case with large logits: there the naive form is wrong.
NAIVE = replace(
    SPEC,
    name="softmax_naive",
    summary="softmax as written",
    build=lambda: softmax_naive,
    scale=_scale(softmax_naive),
    cases=_SAFE,
)

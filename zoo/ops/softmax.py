"""Softmax along a dimension: out_i = exp(x_i - max x) / sum_j exp(x_j - max x), and without the shift.

Source: "Effective PyTorch", on numerical stability. Without the shift exp overflows beyond 88.7 in float32
and 11.0 in float16, and inf / inf is NaN. The shift cancels in value and gradient, so it is detached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.known import SECOND_LOST_EARLY
from zoo.scale import Scale
from zoo.spec import Spec


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax of `x` along `dim`, stable for logits of any finite size.

    Args:
        x: logits, any shape, any floating dtype.
        dim: the dimension that sums to one.

    Returns:
        Probabilities in the shape and dtype of `x`, under CUDA's autocast in float32 at least.

    Raises:
        TypeError: `x` does not hold floating-point numbers.
        IndexError: `dim` is out of range (torch names the range), or its size is zero.

    >>> softmax(torch.tensor([1000.0, 0.0]))
    tensor([1., 0.])
    """
    if not x.is_floating_point():
        raise TypeError(f"softmax: x must have a floating dtype, got {x.dtype}")
    exponentials = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return exponentials / exponentials.sum(dim, keepdim=True)


def softmax_naive(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax as written, NaN beyond the largest logit that exp survives; else the contract of `softmax`.

    Where exp survives but the sum does not, the row is zero and no longer sums to one.

    >>> softmax_naive(torch.tensor([1000.0, 0.0]))
    tensor([nan, 0.])
    """
    if not x.is_floating_point():
        raise TypeError(f"softmax_naive: x must have a floating dtype, got {x.dtype}")
    exponentials = torch.exp(x)
    return exponentials / exponentials.sum(dim, keepdim=True)


def _reference(_model: object, x: Tensor, dim: int = -1) -> Tensor:
    """1 / sum_j exp(x_j - x_i): only differences of logits, and no maximum."""
    moved = x.movedim(dim, -1)
    differences = moved.unsqueeze(-2) - moved.unsqueeze(-1)
    return differences.exp().sum(-1).reciprocal().movedim(-1, dim)


def _logits(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> tuple[Tensor, int]:
    return torch.randn(shape, generator=generator), dim


def _extreme(generator: torch.Generator) -> tuple[Tensor, int]:
    """Rows that reach 1000, some with a rival close behind and some without."""
    x = torch.randn(6, 8, generator=generator)
    x[:, 0] = 1000
    x[::2, 1] = 996
    x[:, 2] -= 1000
    return x, -1


def _constant_rows(generator: torch.Generator) -> tuple[Tensor, int]:
    """Rows of equal logits between ordinary ones."""
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
_SHARED: dict[str, Any] = {
    "source": "Effective PyTorch, numerical stability",
    "formula": "out[i] = exp x[i] / Σ_j exp x[j]",
    "shapes": "(…, n, …) → (…, n, …)",
    "dtypes": "input",
    "twice_differentiable": True,
    "one_graph": True,
    "float32_accurate": ("output", "gradient of x", "second gradient of x"),
    "reference": _reference,
    "expectations": (SECOND_LOST_EARLY,),
}


def _scale(model: Callable[..., Tensor]) -> Scale:
    return Scale(
        knob="classes", sizes=(16, 64, 256, 1024), build=lambda _: model, inputs=lambda n, g: _logits((32, n), -1, g)
    )


SPEC = Spec(
    name="softmax",
    summary="softmax shifted by the maximum",
    build=lambda: softmax,
    scale=_scale(softmax),
    cases=(*_SAFE, Case(name="extreme", inputs=_extreme), Case(name="constant-rows", inputs=_constant_rows)),
    **_SHARED,
)
# No case with large logits: that is what the shifted one is for.
NAIVE = Spec(
    name="softmax_naive",
    summary="softmax as written",
    build=lambda: softmax_naive,
    scale=_scale(softmax_naive),
    cases=_SAFE,
    **_SHARED,
)

"""Sum over the rows of a matrix, out_j = sum_i x_ij: sliced row by row, unbound row by row, and in one call.

Source: "Effective PyTorch", on optimizing runtime. Every slice is an operation of its own, forward and
backward; unbinding makes all rows at once, and one call makes none. Loops also round after every row, to the
dtype of the matrix, where one call rounds once: in float16 a loop over ones never gets beyond 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.claim import Claim
from zoo.scale import Scale
from zoo.spec import Spec


def _check(x: Tensor) -> None:
    if x.dim() != 2:  # noqa: PLR2004
        raise ValueError(f"row_sum: x must have shape (rows, n), got {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"row_sum: x must have a floating dtype, got {x.dtype}")


def row_sum(x: Tensor) -> Tensor:
    """Sum over rows in one call.

    Args:
        x: (rows, n), floating.

    Returns:
        (n,), dtype of `x`, under CUDA's autocast float32 at least; zeros where there is no row.

    Raises:
        ValueError: `x` is not a matrix.
        TypeError: `x` does not hold floating-point numbers.

    >>> row_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check(x)
    return x.sum(0)


def row_sum_sliced(x: Tensor) -> Tensor:
    """Sum over rows that are sliced off one by one; contract of `row_sum`.

    >>> row_sum_sliced(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check(x)
    total = x[:0].sum(0)  # zeros that belong to the graph even without a row
    for i in range(x.size(0)):
        total = total + x[i]
    return total


def row_sum_unbind(x: Tensor) -> Tensor:
    """Sum over rows that are unbound in one call; contract of `row_sum`.

    >>> row_sum_unbind(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check(x)
    total = x[:0].sum(0)
    for row in torch.unbind(x):
        total = total + row
    return total


def _reference(_model: object, x: Tensor) -> Tensor:
    """Multiply by a row of ones."""
    return torch.einsum("i,ij->j", torch.ones_like(x[:, :1]).flatten(), x)


def _draw(rows: int, n: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(rows, n, generator=generator),)


def _strided(generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randn(7, 12, generator=generator).t()[::2],)


def _cancelling(generator: torch.Generator) -> tuple[Tensor]:
    """Rows that cancel in pairs but for the last."""
    rows = torch.randn(4, 5, generator=generator)
    return (torch.cat([256 * rows, -256 * rows, torch.randn(1, 5, generator=generator)]),)


_SHARED: dict[str, Any] = {
    "source": "Effective PyTorch, optimizing runtime with TorchScript",
    "formula": "out[j] = Σ_i x[i, j]",
    "shapes": "(rows, n) → (n,)",
    "cases": (
        Case(name="typical", inputs=partial(_draw, 8, 5)),
        Case(name="one-row", inputs=partial(_draw, 1, 5)),
        Case(name="empty", inputs=partial(_draw, 0, 5)),
        Case(name="cancelling", inputs=_cancelling),
        Case(name="non-contiguous", inputs=_strided),
    ),
    "dtypes": "input",
    "one_graph": True,
    "float32_accurate": ("output", "gradient of x"),
    "reference": _reference,
}

SOURCE = "Effective PyTorch, overloaded operators; 500 rows of 10, the machine is not named"


def _scale(model: Callable[[Tensor], Tensor]) -> Scale:
    return Scale(knob="rows", sizes=(16, 64, 256), build=lambda _: model, inputs=lambda n, g: _draw(n, 10, g))


SUM = Spec(
    name="row_sum",
    summary="sum over rows in one call",
    build=lambda: row_sum,
    scale=_scale(row_sum),
    claims=(
        Claim(
            text="one call is about 100 times faster than slicing",
            source=SOURCE,
            factor=100.0,
            quantity="forward",
            baseline="row_sum_sliced",
            sizes=(500,),
        ),
    ),
    **_SHARED,
)
SLICED = Spec(
    name="row_sum_sliced",
    summary="sum over rows, sliced one by one",
    build=lambda: row_sum_sliced,
    twin="row_sum",
    scale=_scale(row_sum_sliced),
    **_SHARED,
)
UNBIND = Spec(
    name="row_sum_unbind",
    summary="sum over rows, unbound in one call",
    build=lambda: row_sum_unbind,
    twin="row_sum",
    scale=_scale(row_sum_unbind),
    claims=(
        Claim(
            text="unbinding is about 30 % faster than slicing",
            source=SOURCE,
            factor=1.3,
            quantity="forward",
            baseline="row_sum_sliced",
            sizes=(500,),
        ),
    ),
    **_SHARED,
)

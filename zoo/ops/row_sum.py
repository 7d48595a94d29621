"""Sum over the rows of a matrix, out_j = sum_i x_ij: by slicing, by unbinding, and in one call.

Source: "Effective PyTorch", on optimizing runtime. Every slice is a separate operation, in forward and in backward.
Unbinding creates all rows in one operation; one call creates none. A loop also rounds to the dtype of the matrix
after every row, and one call rounds only once: in float16 a loop over ones never gets beyond 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.claim import Claim
from zoo.error_input import INTEGERS, ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def _check(caller: str, x: Tensor) -> None:
    want_floating(caller, "x", x)
    if x.dim() != 2:  # noqa: PLR2004
        raise ValueError(f"{caller}: x must have shape (rows, n), got {list(x.shape)}")


def row_sum(x: Tensor) -> Tensor:
    """Sum over rows in one call.

    Args:
        x: (rows, n), floating.

    Returns:
        (n,), dtype of `x`; with autocast on CUDA, float32 at least. Without rows the result is zeros.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.
        ValueError: `x` is not a matrix.

    >>> row_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check("row_sum", x)
    return x.sum(0)


def row_sum_sliced(x: Tensor) -> Tensor:
    """Sum over rows that are sliced one by one; same contract as `row_sum`.

    >>> row_sum_sliced(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check("row_sum_sliced", x)
    total = x[:0].sum(0)  # zeros that are part of the graph even without rows
    for i in range(x.size(0)):
        total = total + x[i]
    return total


def row_sum_unbind(x: Tensor) -> Tensor:
    """Sum over rows that are unbound in one call; same contract as `row_sum`.

    >>> row_sum_unbind(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    _check("row_sum_unbind", x)
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
    """Draw rows that cancel in pairs, except the last."""
    rows = torch.randn(4, 5, generator=generator)
    return (torch.cat([256 * rows, -256 * rows, torch.randn(1, 5, generator=generator)]),)


SOURCE = "Effective PyTorch, overloaded operators; 500 rows of 10, the machine is not named"


def _scale(model: Callable[[Tensor], Tensor], working: int, working_on_cuda: int) -> Scale:
    return Scale(
        size_name="rows",
        sizes=(16, 64, 256),
        working=working,
        working_on_cuda=working_on_cuda,
        build=lambda _: model,
        inputs=lambda n, g: _draw(n, 10, g),
    )


SUM = Spec(
    name="row_sum",
    summary="sum over rows in one call",
    source="Effective PyTorch, optimizing runtime with TorchScript",
    formula="out[j] = Σ_i x[i, j]",
    shapes="(rows, n) → (n,)",
    build=lambda: row_sum,
    cases=(
        Case(name="typical", inputs=partial(_draw, 8, 5)),
        Case(name="one-row", inputs=partial(_draw, 1, 5)),
        Case(name="empty", inputs=partial(_draw, 0, 5)),
        Case(name="cancelling", inputs=_cancelling),
        Case(name="non-contiguous", inputs=_strided),
    ),
    error_inputs=(
        INTEGERS,
        ErrorInput(name="vector", inputs=lambda _: (torch.ones(8),), error=ValueError, match="x must have shape"),
        ErrorInput(name="rank-3", inputs=lambda _: (torch.ones(2, 8, 5),), error=ValueError, match="x must have shape"),
    ),
    dtypes="input",
    vmappable=True,
    forward_mode=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x"),
    reference=_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=_draw),
    scale=_scale(row_sum, 2**20, 2**24),
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
)
SLICED = replace(
    SUM,
    name="row_sum_sliced",
    summary="sum over rows, sliced one by one",
    build=lambda: row_sum_sliced,
    twin="row_sum",
    forward_mode=False,
    scale=_scale(row_sum_sliced, 2**8, 2**8),
    claims=(),
)
UNBIND = replace(
    SUM,
    name="row_sum_unbind",
    summary="sum over rows, unbound in one call",
    build=lambda: row_sum_unbind,
    twin="row_sum",
    forward_mode=False,
    scale=_scale(row_sum_unbind, 2**9, 2**9),
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
)

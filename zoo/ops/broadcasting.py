"""Sum of a + b along a named axis, between tensors of equal rank: out = sum_dim (a + b).

Source: "Effective PyTorch", on broadcasting. There a vector (2,) is added to a tensor (2, 1): broadcasting silently
makes it a row, and the sum of all elements is 12 instead of 6. Here broadcasting adds no axis and only extends axes
of size one. Only one axis is summed, so the shape of the result shows which axes there were.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_floating, want_integers
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def sum_explicit(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Sum `a + b` along one axis, without adding an axis to either tensor.

    Args:
        a: (d_1, …, d_k), floating, k ≥ 1.
        b: floating, with the rank of `a`; each size equals that of `a`, or one of the two is 1.
        dim: the axis to sum over, from -k to k - 1.

    Returns:
        A tensor of the common shape without axis `dim`, in the promoted dtype; with autocast on CUDA, in float32
        at least.

    Raises:
        TypeError: `a` or `b` is no tensor or does not hold floating-point numbers, or `dim` is no integer.
        ValueError: the ranks differ, or two sizes differ and neither is 1.
        IndexError: `dim` is out of range.

    >>> a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
    >>> sum_explicit(a, b, 0)
    Traceback (most recent call last):
    ValueError: sum_explicit: a and b must have the same number of axes, got shapes [2, 1] and [2]
    >>> sum_explicit(a, b.unsqueeze(1), 0)
    tensor([6.])
    """
    want_floating("sum_explicit", "a", a)
    want_floating("sum_explicit", "b", b)
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_integers("sum_explicit", dim=dim)
    if a.dim() != b.dim():
        raise ValueError(
            f"sum_explicit: a and b must have the same number of axes, got shapes {list(a.shape)} and {list(b.shape)}"
        )
    if not -a.dim() <= dim < a.dim():
        raise IndexError(f"sum_explicit: dim must name one of {a.dim()} axes, got {dim}")
    for i in range(a.dim()):
        if a.size(i) != b.size(i) and a.size(i) != 1 and b.size(i) != 1:
            raise ValueError(
                f"sum_explicit: sizes of a and b must be equal or 1, got shapes {list(a.shape)} and {list(b.shape)}"
            )
    return (a + b).sum(dim)


def _reference(_model: object, a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Sum each tensor separately, times the number of its repetitions by broadcasting."""
    count = max(a.size(dim), b.size(dim)) if a.size(dim) and b.size(dim) else 0
    return a.sum(dim) * (count / max(a.size(dim), 1)) + b.sum(dim) * (count / max(b.size(dim), 1))


def _pair(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], dim: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    return torch.randn(shape_a, generator=generator), torch.randn(shape_b, generator=generator), dim


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
    return torch.randn(3, 8, generator=generator).t(), torch.randn(8, 6, generator=generator)[:, ::2], 0


SPEC = Spec(
    name="sum_explicit",
    summary="sum of a + b along a named axis, without adding an axis silently",
    source="Effective PyTorch, broadcasting the good and the ugly",
    formula="out = Σ_dim (a + b)",
    shapes="(…, n, …), (…, n, …) → (…, …), without the axis dim",
    build=lambda: sum_explicit,
    cases=(
        Case(name="typical", inputs=partial(_pair, (6, 4), (6, 4), 0)),
        Case(name="column-and-row", inputs=partial(_pair, (5, 1), (1, 7), -1)),
        Case(name="rank-3", inputs=partial(_pair, (2, 1, 4), (2, 3, 1), 1)),
        Case(name="one-row", inputs=partial(_pair, (1, 6), (1, 6), 0)),
        Case(name="vectors", inputs=partial(_pair, (6,), (6,), 0)),
        Case(name="empty", inputs=partial(_pair, (0, 4), (1, 4), 0)),
        Case(name="non-contiguous", inputs=_strided),
    ),
    error_inputs=(
        ErrorInput(
            name="matrix-and-vector",  # torch would add an axis
            inputs=partial(_pair, (4, 1), (4,), 0),
            error=ValueError,
            match="must have the same number of axes",
        ),
        ErrorInput(
            name="sizes-differ",
            inputs=partial(_pair, (6, 4), (6, 3), 0),
            error=ValueError,
            match="sizes of a and b must be equal or 1",
        ),
        ErrorInput(
            name="no-such-axis",
            inputs=partial(_pair, (6, 4), (6, 4), 2),
            error=IndexError,
            match="dim must name one of 2 axes, got 2",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda _: (torch.ones(6, 4, dtype=torch.int64), torch.ones(6, 4, dtype=torch.int64), 0),
            error=TypeError,
            match="must have a floating dtype",
        ),
    ),
    dtypes="input",
    one_graph=True,
    float32_accurate=("output", "gradient of a", "gradient of b"),
    reference=_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _pair((rows, n), (1, n), 0, g)),
    scale=Scale(
        size_name="rows",
        sizes=(16, 256, 4096),
        working=2**16,
        working_on_cuda=2**22,
        build=lambda _: sum_explicit,
        inputs=lambda n, g: _pair((n, 64), (n, 64), 0, g),
    ),
)

"""Every overloaded operator of tensors: arithmetic on floating matrices, logic on integers or booleans.

Source: "Effective PyTorch", on overloaded operators. &, |, ^ and ~ work bit by bit: 6 ^ 3 is 5, but a logical
exclusive or gives False. On booleans the two are the same. As in Python, // rounds down and the remainder has the
sign of the divisor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.arguments import want_floating, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.shared_expectations import NAMED_TUPLE_NOT_PACKAGED
from zoo.spec import Spec


class Arithmetic(NamedTuple):
    """The results of `arithmetic`, by the name of the operation.

    >>> Arithmetic._fields[:4]
    ('neg', 'abs', 'add', 'sub')
    """

    neg: Tensor
    abs: Tensor
    add: Tensor
    sub: Tensor
    mul: Tensor
    truediv: Tensor
    floordiv: Tensor
    mod: Tensor
    pow: Tensor
    matmul: Tensor


class Logic(NamedTuple):
    """The results of `logic`, by the name of the operation.

    >>> Logic._fields[-4:]
    ('bitwise_not', 'bitwise_and', 'bitwise_or', 'bitwise_xor')
    """

    lt: Tensor
    le: Tensor
    gt: Tensor
    ge: Tensor
    eq: Tensor
    ne: Tensor
    bitwise_not: Tensor
    bitwise_and: Tensor
    bitwise_or: Tensor
    bitwise_xor: Tensor


def arithmetic(x: Tensor, y: Tensor) -> Arithmetic:
    """Compute -y, |y|, x + y, x - y, x * y, x / y, x // y, x % y, x ** y and x @ y.

    Args:
        x: (n, n), floating. The power is NaN where `x` is negative and `y` is not an integer.
        y: (n, n), dtype of `x`. Where `y` is zero, the quotients and the remainder are inf or NaN.

    Returns:
        Ten tensors (n, n) in the dtype of `x`. Under autocast the matrix product has the autocast dtype, and on
        CUDA the power is float32 at least. All results except the floor division can be differentiated.

    Raises:
        TypeError: one of them is no tensor, or the dtypes differ or are not floating.
        ValueError: `x` and `y` are not square matrices of one size.

    >>> out = arithmetic(torch.tensor([[7.0]]), torch.tensor([[-2.0]]))
    >>> out.floordiv.item(), out.mod.item()
    (-4.0, -1.0)
    """
    want_floating("arithmetic", "x", x)
    want_floating("arithmetic", "y", y)
    if x.dtype != y.dtype:
        raise TypeError(f"arithmetic: y must have the dtype of x, {x.dtype}, got {y.dtype}")
    if x.dim() != 2 or x.size(0) != x.size(1):  # noqa: PLR2004
        raise ValueError(f"arithmetic: x must have shape (n, n), got {list(x.shape)}")
    if y.shape != x.shape:
        raise ValueError(f"arithmetic: y must have the shape of x, {list(x.shape)}, got {list(y.shape)}")
    whole = x.detach() // y.detach()  # torch has no derivative for it: backward would raise
    return Arithmetic(-y, abs(y), x + y, x - y, x * y, x / y, whole, x % y, x**y, x @ y)


def logic(i: Tensor, j: Tensor) -> Logic:
    """Compute i < j, i <= j, i > j, i >= j, i == j, i != j, ~i, i & j, i | j and i ^ j.

    Args:
        i: any shape, an integer dtype or bool.
        j: shape and dtype of `i`.

    Returns:
        Six comparisons in bool, then four bitwise operations in the dtype of `i`.

    Raises:
        TypeError: one of them is no tensor, or the dtypes differ, or they are floating or complex.
        ValueError: the shapes differ.

    >>> logic(torch.tensor([6]), torch.tensor([3])).bitwise_xor
    tensor([5])
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors("logic", i=i, j=j)
    if i.is_floating_point() or i.is_complex():
        raise TypeError(f"logic: i must have an integer dtype, or bool, got {i.dtype}")
    if i.dtype != j.dtype:
        raise TypeError(f"logic: j must have the dtype of i, {i.dtype}, got {j.dtype}")
    if i.shape != j.shape:
        raise ValueError(f"logic: j must have the shape of i, {list(i.shape)}, got {list(j.shape)}")
    return Logic(i < j, i <= j, i > j, i >= j, i == j, i != j, ~i, i & j, i | j, i ^ j)


def _arithmetic_reference(_model: object, x: Tensor, y: Tensor) -> Arithmetic:
    quotient = x * y.reciprocal()
    return Arithmetic(
        0 - y,
        torch.maximum(y, 0 - y),
        y - (0 - x),
        x + (0 - y),
        torch.einsum("ij,ij->ij", x, y),
        quotient,
        quotient.floor(),
        x - y * quotient.floor(),
        torch.exp(y * x.log()),
        (x.unsqueeze(2) * y).sum(1),
    )


def _logic_reference(_model: object, i: Tensor, j: Tensor) -> Logic:
    """Compare by minima, and compute the bitwise operations from single bits and sums."""
    if i.dtype == torch.bool:
        less, more = torch.logical_and(~i, j), torch.logical_and(i, ~j)
        both, either, other = torch.logical_and(i, j), torch.logical_or(i, j), torch.logical_xor(i, j)
        return Logic(less, ~more, more, ~less, ~other, other, torch.logical_not(i), both, either, other)
    less, more = torch.minimum(i, j).ne(j), torch.minimum(i, j).ne(i)
    both = torch.stack([((i >> k) % 2) * ((j >> k) % 2) << k for k in range(64)]).sum(0)
    return Logic(less, ~more, more, ~less, ~(less | more), less | more, -i - 1, both, i + j - both, i + j - 2 * both)


def _matrices(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw positive x and y of either sign; x / y keeps away from the integers, where floor division jumps."""
    signs = torch.randint(2, (n, n), generator=generator) * 2 - 1
    y = signs * torch.tensor([0.5, 0.75, 1.0, 1.5])[torch.randint(4, (n, n), generator=generator)]
    whole = torch.randint(3, (n, n), generator=generator)
    return (whole + 0.375 + torch.rand(n, n, generator=generator) / 4) * y.abs(), y


def _transposed(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = _matrices(5, generator)
    return x.t(), y.t()


def _integers(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(-99, 99, shape, generator=generator), torch.randint(-99, 99, shape, generator=generator)


def _edges(_: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return every pair of the numbers at the edges of int64 and around zero."""
    edges = torch.tensor([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])
    return edges.repeat_interleave(7), edges.repeat(7)


def _booleans(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.rand(shape, generator=generator) < 0.5, torch.rand(shape, generator=generator) < 0.5  # noqa: PLR2004


def _all_pairs(_: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])


_SOURCE = "Effective PyTorch, take advantage of overloaded operators"
_COMPARISONS = {f"output.{name}": "bool" for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_BITWISE = [f"output.{name}" for name in Logic._fields[6:]]

ARITHMETIC = Spec(
    name="arithmetic",
    summary="every overloaded arithmetic operator",
    source=_SOURCE,
    formula="-y, |y|, x + y, x - y, x·y, x / y, ⌊x / y⌋, x - y⌊x / y⌋, x^y, and the matrix product x y",
    shapes="(n, n), (n, n) → ten times (n, n)",
    build=lambda: arithmetic,
    cases=(
        Case(name="typical", inputs=partial(_matrices, 6)),
        Case(name="one-by-one", inputs=partial(_matrices, 1)),
        Case(name="empty", inputs=partial(_matrices, 0)),
        Case(name="non-contiguous", inputs=_transposed),
    ),
    error_inputs=(
        ErrorInput(
            name="sizes-differ",
            inputs=lambda g: (torch.randn(6, 6, generator=g), torch.randn(5, 5, generator=g)),
            error=ValueError,
            match="arithmetic: ",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda g: _integers((6, 6), g),
            error=TypeError,
            match="floating dtype",
        ),
        ErrorInput(
            name="dtypes-differ",
            inputs=lambda g: (torch.randn(6, 6, generator=g), torch.randn(6, 6, generator=g).double()),
            error=TypeError,
            match="dtype",
        ),
    ),
    dtypes={f"output.{name}": "follows" if name == "matmul" else "input" for name in Arithmetic._fields},
    one_graph=True,
    float32_accurate=tuple(f"output.{name}" for name in Arithmetic._fields if name != "matmul"),
    reference=_arithmetic_reference,
    expectations=(NAMED_TUPLE_NOT_PACKAGED,),
    family=Family(sizes={"n": (1, 9)}, inputs=_matrices),
)
INTEGERS = Spec(
    name="logic_of_integers",
    summary="every comparison and bitwise operator, on int64",
    source=_SOURCE,
    formula="i < j, i ≤ j, i > j, i ≥ j, i = j, i ≠ j, ¬i, i ∧ j, i ∨ j, i ⊕ j, the last four bit by bit",
    shapes="(…), (…) → ten times (…)",
    build=lambda: logic,
    cases=(
        Case(name="typical", inputs=partial(_integers, (5, 4))),
        Case(name="edges", inputs=_edges),
        Case(name="one-number", inputs=partial(_integers, ())),
        Case(name="empty", inputs=partial(_integers, (0, 4))),
        Case(name="non-contiguous", inputs=lambda g: tuple(t.t() for t in _integers((5, 4), g))),
    ),
    error_inputs=(
        ErrorInput(
            name="shapes-differ",  # torch would add an axis
            inputs=lambda _: (torch.ones(5, 4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)),
            error=ValueError,
            match="j must have the shape of i",
        ),
        ErrorInput(
            name="floating",
            inputs=lambda g: (torch.randn(5, 4, generator=g), torch.randn(5, 4, generator=g)),
            error=TypeError,
            match="integer dtype, or bool",
        ),
        ErrorInput(
            name="dtypes-differ",
            inputs=lambda _: (torch.ones(5, 4, dtype=torch.int64), torch.ones(5, 4, dtype=torch.bool)),
            error=TypeError,
            match="dtype",
        ),
    ),
    dtypes=_COMPARISONS | dict.fromkeys(_BITWISE, "int64"),
    differentiable=False,
    one_graph=True,
    reference=_logic_reference,
    expectations=(NAMED_TUPLE_NOT_PACKAGED,),
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _integers((rows, n), g)),
)
BOOLEANS = replace(
    INTEGERS,
    name="logic_of_booleans",
    summary="every comparison and bitwise operator, on bool",
    cases=(
        Case(name="typical", inputs=partial(_booleans, (5, 4))),
        Case(name="all-pairs", inputs=_all_pairs),
        Case(name="empty", inputs=partial(_booleans, (0, 4))),
        Case(name="non-contiguous", inputs=lambda g: tuple(t.t() for t in _booleans((5, 4), g))),
    ),
    dtypes=_COMPARISONS | dict.fromkeys(_BITWISE, "bool"),
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _booleans((rows, n), g)),
)

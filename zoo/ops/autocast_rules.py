"""An add and a matrix product under autocast: x + y keeps its dtype, x @ y gets the autocast dtype.

Source: "Effective PyTorch", on automatic mixed precision. Autocast has lists of operations, not of tensors. The
matrix product is on the low-precision list. The add is on no list: it keeps the dtype of its operands, or promotes
them if they differ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import SECOND_LOST, SECOND_LOST_EARLY
from zoo.spec import Spec


def add_and_matmul(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the sum and the matrix product of two square matrices.

    Args:
        x: (n, n), floating.
        y: (n, n), floating. Without autocast it must have the dtype of `x`.

    Returns:
        `x + y` in the promoted dtype of both, and `x @ y` in the autocast dtype; without autocast both have the
        dtype of `x`.

    Raises:
        TypeError: one of them is no tensor, or does not hold floating-point numbers.
        ValueError: `x` and `y` are not square matrices of one size.
        RuntimeError: their dtypes differ and autocast, which would cast the operands of the product, is off.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     total, product = add_and_matmul(torch.eye(2), torch.eye(2))
    >>> total.dtype, product.dtype
    (torch.float32, torch.bfloat16)
    """
    want_floating("add_and_matmul", "x", x)
    want_floating("add_and_matmul", "y", y)
    if x.dim() != 2 or x.size(0) != x.size(1):  # noqa: PLR2004
        raise ValueError(f"add_and_matmul: x must have shape (n, n), got {list(x.shape)}")
    if y.shape != x.shape:
        raise ValueError(f"add_and_matmul: y must have the shape of x, {list(x.shape)}, got {list(y.shape)}")
    return x + y, x @ y


def _reference(_model: object, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y - (-x), (x.unsqueeze(2) * y).sum(1)


def _matrices(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, n, generator=generator), torch.randn(n, n, generator=generator)


def _half_first(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = _matrices(n, generator)
    return x.half(), y


def _transposed(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = _matrices(6, generator)
    return x.t(), y.t()


SPEC = Spec(
    name="add_and_matmul",
    summary="an add and a product of float32 matrices",
    source="Effective PyTorch, automatic mixed precision",
    formula="x + y, x @ y",
    shapes="(n, n), (n, n) → (n, n), (n, n)",
    build=lambda: add_and_matmul,
    cases=(
        Case(name="typical", inputs=partial(_matrices, 8)),
        Case(name="one-by-one", inputs=partial(_matrices, 1)),
        Case(name="empty", inputs=partial(_matrices, 0)),
        Case(name="non-contiguous", inputs=_transposed),
    ),
    error_inputs=(
        ErrorInput(
            name="sizes-differ",
            inputs=lambda g: (torch.randn(8, 8, generator=g), torch.randn(7, 7, generator=g)),
            error=ValueError,
            match="add_and_matmul: ",
        ),
        ErrorInput(
            name="not-square",
            inputs=lambda g: (torch.randn(8, 5, generator=g), torch.randn(8, 5, generator=g)),
            error=ValueError,
            match="add_and_matmul: ",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda g: tuple(t.long() for t in _matrices(8, g)),
            error=TypeError,
            match="must have a floating dtype",
        ),
    ),
    dtypes={"output[0]": "input", "output[1]": "follows"},
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=("output[0]",),
    reference=_reference,
    expectations=(
        SECOND_LOST,
        SECOND_LOST_EARLY,
    ),
    family=Family(sizes={"n": (1, 9)}, inputs=_matrices),
    scale=Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=256,
        working_on_cuda=2**13,
        build=lambda _: add_and_matmul,
        inputs=_matrices,
    ),
)

# Without autocast torch does not multiply mixed dtypes, so fp32 is a declared refusal.
HALF = replace(
    SPEC,
    name="add_and_matmul_half",
    summary="an add and a product of a float16 and a float32 matrix",
    cases=(Case(name="typical", inputs=partial(_half_first, 8)),),
    dtypes={"output[0]": "float32", "output[1]": "follows"},
    twice_differentiable=False,
    family=Family(sizes={"n": (1, 9)}, inputs=_half_first),
    scale=None,  # without a float32 cell there is nothing to compare a speed with
    expectations=(
        Expect(
            outcome="refuses",
            precisions=("fp32", "tf32"),
            error="RuntimeError",
            match="to have the same dtype",
            reason="without autocast torch raises an error for a matrix product of mixed dtypes",
            link="https://docs.pytorch.org/docs/stable/amp.html",
        ),
        Expect(
            outcome="ERROR",
            modes=("scripted",),
            precisions=("amp_bf16",),
            error="RuntimeError",
            match="c10::Half != c10::BFloat16",
            reason="TorchScript's autocast pass casts float32 operands only, so backward mixes float16 and bfloat16",
            link="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md",
        ),
    ),
)

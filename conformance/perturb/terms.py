"""Counts how many terms an op adds up for each result: the more, the more its result depends on their order."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.evaluate.custom_ops import Unwatched, leaves_of
from conformance.evaluate.inputs import is_rounded
from zoo import internals

REDUCTIONS = frozenset({"sum", "mean", "nansum", "cumsum", "prod", "cumprod", "trace"})


# Ops of linear algebra that compute each result from a whole matrix, step after step.
DECOMPOSITIONS = frozenset(
    """
    _cholesky_solve_helper _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
    cholesky cholesky_inverse geqrf linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product
    linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular ormqr triangular_solve
    """.split()
)
PASSES = 16  # over a matrix, of iterations such as those of an SVD


def adds_single_terms(name: str, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the op is a reduction over axes of size one: every sum has one term, so nothing rounds."""
    if name not in REDUCTIONS or not args or not isinstance(args[0], torch.Tensor):
        return False
    shape, axes = args[0].shape, args[1] if len(args) > 1 else None
    if axes is None or internals.overload_of(func) == "default":
        return args[0].numel() <= 1
    axes = [axes] if isinstance(axes, int) else axes
    return all(shape[axis] == 1 for axis in axes) if axes else args[0].numel() <= 1


def terms(name: str, args: tuple[Any, ...]) -> int:  # noqa: PLR0911 -- one line for each family
    """How many terms the op sums for each result."""
    shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
    if not shapes:
        return 1
    match name:
        case "mm" | "bmm" | "addmm" | "baddbmm" | "mv" | "dot" | "addmv" | "linear":
            return shapes[-2][-1] if len(shapes) > 1 else 1
        case "convolution" | "_convolution" | "mkldnn_convolution":
            return math.prod(shapes[1][1:])
        case "convolution_backward":
            gradient, _, weight = shapes[:3]
            positions = gradient[0] * math.prod(gradient[2:])
            return max(positions, weight[0] * math.prod(weight[2:]))
        case "native_batch_norm" | "_native_batch_norm_legit" | "native_batch_norm_backward":
            return shapes[0][0] * math.prod(shapes[0][2:])
        case "native_layer_norm" | "native_layer_norm_backward" | "native_group_norm" | "native_group_norm_backward":
            return max(shapes[0][-1], math.prod(shapes[0][:-1]))
        case "_softmax" | "_log_softmax" | "_softmax_backward_data" | "_log_softmax_backward_data":
            return max(shapes[0], default=1)
        case _ if name in DECOMPOSITIONS:
            return PASSES * max(shapes[0][-2:], default=1)
        case _ if _sums(name):
            axes = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else None
            summed = [shapes[0][a] for a in axes if isinstance(a, int)] if axes else shapes[0]
            return math.prod(summed)
        case _:
            return 1


def _sums(name: str) -> bool:
    """Reductions, and ops that accumulate many elements into one."""
    return name in REDUCTIONS or any(
        part in name for part in ("sum", "mean", "var", "std", "norm", "scatter", "index_put", "index_add", "embedding")
    )


# Kernels that hold their partial sums in a low precision: how many terms they add up, and how large these are.
#
# Partial sums are as large as the root of the sum of the squares of their terms, also where the sum itself cancels.

# Backwards of norms, whose kernels may add up rows in the low precision: the sums are the gradients of weight and bias.
OF_ROWS = frozenset({"native_layer_norm_backward", "native_group_norm_backward"})


# Ops that add terms into places of a tensor one by one, with the position of the terms among their arguments.
IN_PLACES = {"embedding_dense_backward": 0, "index_add": 3, "scatter_add": 3, "index_put": 2, "_index_put_impl": 2}


def over_rows(name: str, gradient: torch.Tensor, sums: torch.Tensor) -> tuple[float, torch.Tensor]:
    """How many rows the backward of a norm adds up, and the sums of the squares of their terms.

    Args:
        name: a name in `OF_ROWS`.
        gradient: its first argument.
        sums: the gradient of the weight or of the bias. What multiplies a term of the former has the mean square 1.
    """
    rows = max(1.0, gradient.numel() / max(1, sums.numel()))
    squares = gradient.square()
    if name == "native_layer_norm_backward":
        return rows, squares.sum_to_size(sums.shape)
    return rows, squares.transpose(0, 1).flatten(1).sum(1)  # the channels are the second axis


def over_places(
    name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many terms an op adds up in each place of its result, at least 1, and the sums of their squares.

    Args:
        name: a name in `IN_PLACES`.
        func: the op, with its arguments.
        args: its arguments by position.
        kwargs: its arguments by name; a factor of the terms is left out.
    """
    at = IN_PLACES[name]
    plain = {key: value for key, value in kwargs.items() if key != "alpha"}

    def added(terms: torch.Tensor) -> torch.Tensor:
        given = [torch.zeros_like(args[0]) if i == 0 else arg for i, arg in enumerate(args)]
        given[at] = terms
        result: torch.Tensor = func(*given, **plain)
        return result

    return added(torch.ones_like(args[at])).clamp(min=1.0), added(args[at].square())


# Tells whether an op computes with small whole numbers, which every precision represents: then it rounds nothing.

LARGEST = 256  # bfloat16 represents every whole number up to here
ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "square", "floor_divide", "fmod", "remainder"})
SUMS = frozenset(
    """
    addmm addmv baddbmm bmm cumsum dot index_add index_put mm mv nansum scatter_add sum
    """.split()
)


def may_count(name: str) -> bool:
    """Whether an op gives whole numbers for whole numbers."""
    return name in ELEMENTWISE or name in SUMS


def counts(numbers: Any, name: str) -> bool:
    """Whether all floating numbers in a container are small whole numbers, so that an op on them rounds nothing.

    Partial sums of numbers of both signs may be larger than the sum. So a sum counts if no operand is negative.

    Args:
        numbers: the operands or the results of the op.
        name: name of the op; it is one that `may_count`.
    """
    with Unwatched():
        for leaf in leaves_of(numbers):
            if isinstance(leaf, float) and not leaf.is_integer():
                return False
            if is_rounded(leaf) and not _whole(leaf.detach(), signed=name in ELEMENTWISE):
                return False
    return True


def _whole(tensor: torch.Tensor, *, signed: bool) -> bool:
    if tensor.is_complex():
        return False
    if not tensor.numel():
        return True
    first = tensor[(0,) * tensor.dim()].item()  # most tensors are told by one element
    if first != first // 1 or not abs(first) <= LARGEST:
        return False
    low, high = tensor.aminmax()
    least = -LARGEST if signed else 0
    return least <= float(low) and float(high) <= LARGEST and bool((tensor == tensor.trunc()).all())

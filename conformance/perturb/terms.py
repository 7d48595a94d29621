"""Counts how many terms an op adds up for each result: the more, the more its result depends on their order."""

from __future__ import annotations

import math
from typing import Any

import torch

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

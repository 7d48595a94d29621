"""Kernels that hold their partial sums in a low precision: how many terms they add up, and how large these are.

Partial sums are as large as the root of the sum of the squares of their terms, also where the sum itself cancels.
"""

from __future__ import annotations

from typing import Any

import torch

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

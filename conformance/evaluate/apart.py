"""Rounds inputs to bfloat16 so that values which differ stay different, and none lands on a likely kink."""

from __future__ import annotations

from typing import Any

import torch

from zoo import internals
from zoo.case import Call

APART = 1 << 20  # draw number n · APART + d: draw d, moved apart along the n-th of these axes
AXES = (-1, 0)
LONGEST = 512  # elements of a line; of more normal numbers, bfloat16 cannot keep each from its neighbours
ROUND = 16  # a bfloat16 whose last four bits are zero is a round number, such as 0.5, 1 or 6: a kink may lie there


def moved_apart(call: Call, axis: int) -> Call:
    """The arguments with floating tensors rounded to bfloat16, but kept apart.

    A number moves by the smallest steps that the format has. Numbers that were equal stay equal, and numbers that
    bfloat16 represents stay as they are, since the spec may mean them. Tensors that are not contiguous are left alone.

    Args:
        call: the arguments as drawn.
        axis: the axis along which values must differ; in a small tensor they differ everywhere.
    """
    seen: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        if leaf.layout != torch.strided or not leaf.is_contiguous() or not leaf.numel():
            return leaf
        return seen.setdefault(id(leaf), _tensor_apart(leaf.detach(), axis))

    args, kwargs = internals.tree_map(one, (call.args, dict(call.kwargs)))
    return Call(args, kwargs)


def _tensor_apart(values: torch.Tensor, axis: int) -> torch.Tensor:
    if values.numel() <= LONGEST:
        return _line_apart(values.flatten()).view(values.shape)
    if values.shape[axis] > LONGEST:
        return values
    return _line_apart(values.movedim(axis, -1)).movedim(-1, axis).contiguous()


def _line_apart(values: torch.Tensor) -> torch.Tensor:
    """Distinct bfloat16 numbers for the distinct elements of each line along the last axis."""
    coarse = values.to(torch.bfloat16)
    kept = (coarse.to(values.dtype) == values) | ~coarse.isfinite()
    values, order = values.sort(stable=True, dim=-1)
    place = _place(coarse.gather(-1, order))
    rises = torch.zeros_like(place)
    rises[..., 1:] = (values.diff(dim=-1) > 0).cumsum(-1)
    apart = rises + (place - rises).cummax(-1).values  # at least one place more at each rise
    spread = torch.empty_like(values).scatter(-1, order, _number(apart).to(values.dtype))
    return torch.where(kept, coarse.to(values.dtype), spread)


def _place(numbers: torch.Tensor) -> torch.Tensor:
    """The rank of a bfloat16 number among those that are not round; a round one gets the rank of the next."""
    bits = numbers.view(torch.int16).to(torch.int64)
    size = bits & 0x7FFF
    rank = size - size // ROUND + (size % ROUND == 0)
    return torch.where(bits < 0, -rank, rank)


def _number(rank: torch.Tensor) -> torch.Tensor:
    """The bfloat16 number of a rank."""
    size = rank.abs()
    size = torch.where(size == 0, 0, size + (size - 1).div(ROUND - 1, rounding_mode="floor"))
    bits = torch.where(rank < 0, size | -0x8000, size)
    return bits.to(torch.int16).view(torch.bfloat16)

"""Measures how far the operands of an op are from its kinks, and from being equal where the op selects one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.evaluate.custom_ops import leaves_of
from conformance.evaluate.inputs import is_rounded

JUMPS = frozenset({"ceil", "floor", "frac", "round", "sign", "trunc"})
# Ops whose kinks or jumps lie at values that their arguments name, and with them the ops that compare two tensors.
FIXED = JUMPS.union(
    """
    _prelu_kernel abs clamp clamp_max clamp_min elu fmax fmin grid_sampler_2d grid_sampler_3d hardshrink hardsigmoid
    hardswish hardtanh leaky_relu maximum minimum prelu relu rrelu_with_noise softshrink threshold
    """.split()
)
# Ops that select among the elements of a tensor.
CHOICES = frozenset(
    """
    adaptive_max_pool2d adaptive_max_pool3d amax amin aminmax argmax argmin cummax cummin kthvalue max
    max_pool2d_with_indices max_pool3d_with_indices median min mode msort nanmedian sort topk
    """.split()
)
COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
WHOLE = JUMPS | COMPARISONS  # ops whose whole result jumps where an operand crosses a border
# Ops with such a result: all of it, or what of it is no fraction, such as the indices of topk.
DECISIONS = WHOLE.union(CHOICES, {"_to_copy", "bucketize", "searchsorted"})
SELECTED = frozenset({"amax", "amin", "max", "min"})  # values of the argument `reduce` of scatter_reduce and its kin
EXTREMES = frozenset({"max", "amax", "min", "amin"})
SAMPLERS = frozenset({"grid_sampler_2d", "grid_sampler_3d"})  # these bend in the grid, and are linear in the image
INDICES = frozenset({"argmax", "argmin"})  # these have no gradient
EDGE = 3.0  # where hardswish and hardsigmoid bend
BILINEAR = 0  # the interpolation mode of grid_sampler that has kinks


def gaps(  # noqa: PLR0911 -- one line for each family
    name: str, x: torch.Tensor, rest: Sequence[Any], given: dict[str, Any]
) -> list[torch.Tensor]:
    """Signed distance of every element to each kink of an op of `FIXED`; the sign changes at the kink.

    Args:
        name: name of the op.
        x: its first operand.
        rest: its other arguments by position.
        given: its arguments by name.
    """
    match name:
        case "clamp" | "hardtanh" | "clamp_min" | "clamp_max":
            limits = [*rest, *given.values()] or [-1.0, 1.0]
            return [x - limit for limit in limits if isinstance(limit, (int, float)) or is_rounded(limit)]
        case "hardswish" | "hardsigmoid":
            return [x + EDGE, x - EDGE]
        case "hardshrink" | "softshrink":
            limit = rest[0] if rest else given.get("lambd", 0.5)
            return [x + limit, x - limit]
        case "maximum" | "minimum" | "fmax" | "fmin" | "threshold":
            return [x - rest[0]]
        case "elu":
            alpha, slope = (rest[k] if len(rest) > k else 1.0 for k in (0, 2))
            return [] if alpha * slope == 1.0 else [x]
        case "grid_sampler_2d" | "grid_sampler_3d":
            return _pixel_gaps(x, *rest)
        case "ceil" | "floor" | "frac" | "trunc":
            return [_from_whole(x)]
        case "round":
            steps = 10.0 ** given.get("decimals", 0)
            return [_from_whole(x * steps - 0.5) / steps]
        case _:
            return [x]


def _pixel_gaps(image: torch.Tensor, grid: torch.Tensor, mode: int, _: int, align: bool) -> list[torch.Tensor]:  # noqa: FBT001
    """How far each sampled coordinate is from a pixel's centre, where bilinear interpolation bends."""
    if mode != BILINEAR:
        return []
    size = torch.tensor(image.shape[:1:-1], dtype=grid.dtype, device=grid.device)  # the grid names the width first
    place = (grid + 1.0) / 2.0 * (size - 1.0) if align else ((grid + 1.0) * size - 1.0) / 2.0
    return [_from_whole(place)]


def _from_whole(x: torch.Tensor) -> torch.Tensor:
    """The distance of every number to the nearest whole number; its sign changes at whole numbers alone."""
    near = x.round()
    return (x - near) * (1.0 - 2.0 * near.remainder(2.0))


@torch.no_grad()
def decision_gap(name: str, x: torch.Tensor, rest: Sequence[Any], given: dict[str, Any]) -> torch.Tensor | None:
    """How far the operand of an op of `DECISIONS` is from where the result jumps; None if that is not known."""
    if name in COMPARISONS:
        return x.sub(rest[0])
    if name in INDICES:
        return extreme_gap(name.removeprefix("arg"), x, rest, given)
    if name in JUMPS or name == "_to_copy":
        return gaps("trunc" if name == "_to_copy" else name, x, rest, given)[0]
    if name == "bucketize" and isinstance(rest[0], torch.Tensor) and rest[0].numel():
        return (x.unsqueeze(-1) - rest[0]).abs().amin(-1)
    if name == "topk" and x.dim():
        best, axis = _best(x, rest, given)
        return best.narrow(axis, rest[0] - 1, 2).diff(dim=axis) if 0 < rest[0] < best.shape[axis] else None
    return None


def extreme_gap(name: str, x: torch.Tensor, rest: Sequence[Any], given: dict[str, Any]) -> torch.Tensor | None:
    """How far the best of each line is ahead of the second; None if there is no second, or more than one axis."""
    axes = rest[0] if rest else given.get("dim")
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    axis = axes[0] if len(axes) == 1 else None
    if not isinstance(axis, int) or not x.dim() or x.shape[axis] < 2:  # noqa: PLR2004 -- no rival, no tie
        return None
    return x.topk(2, dim=axis, largest="max" in name).values.diff(dim=axis)


def selects_in_groups(name: str, arguments: Any) -> bool:
    """Whether an op keeps the largest or smallest of groups of numbers. Its backward looks for that number."""
    return "reduce" in name and any(word in SELECTED for word in leaves_of(arguments) if isinstance(word, str))


def group_gaps(
    best: torch.Tensor, axis: int, index: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each element is behind the best of its group, and which groups have two of the best.

    Args:
        best: what the op has selected.
        axis: the axis along which it selects.
        index: the group of each element, or of each slice along the axis.
        x: the elements.
    """
    if index.dim() != x.dim():
        index = index.view([-1 if k == axis % x.dim() else 1 for k in range(x.dim())]).expand_as(x)
    behind = best.gather(axis, index) - x[tuple(slice(n) for n in index.shape)]
    count = torch.zeros_like(best, dtype=torch.int64).scatter_add(axis, index, (behind == 0).long())
    return behind[behind != 0], count > 1


def rivals(name: str, x: torch.Tensor, rest: Sequence[Any], given: dict[str, Any]) -> torch.Tensor | None:
    """Where an op of `CHOICES` may take either of two equal elements: a boolean mask; None if it has no rivals."""
    if "pool" in name:
        return _equal_in_windows(name, x, rest)
    if name == "topk":
        best, axis = _best(x, rest, given)
        return best.diff(dim=axis) == 0
    if name in ("max", "min", "amax", "amin", "aminmax", "argmax", "argmin"):
        axis = _axis(rest, given, None)
        best = x.amin(axis, keepdim=True) if "min" in name else x.amax(axis, keepdim=True)
        tied = (x == best).sum(axis if axis is not None else tuple(range(x.dim()))) > 1
        if name == "aminmax":
            tied = tied | ((x == x.amax(axis, keepdim=True)).sum(axis if axis is not None else None) > 1)
        return tied
    axis = _axis(rest[1:] if name == "kthvalue" else rest, given, None if "median" in name else -1)
    line = x.flatten() if axis is None else x
    return line.sort(dim=-1 if axis is None else axis).values.diff(dim=-1 if axis is None else axis) == 0


def _best(x: torch.Tensor, rest: Sequence[Any], given: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """The elements of each line that topk selects, and the next one if there is one; and the axis of the lines."""
    axis = _axis(rest[1:], given, -1) if x.dim() else -1
    largest = rest[2] if len(rest) > 2 else given.get("largest", True)  # noqa: PLR2004 -- its position
    size = x.shape[axis] if x.dim() else 1
    return x.topk(min(rest[0] + 1, size), dim=axis, largest=largest).values, axis


def _axis(rest: Sequence[Any], given: dict[str, Any], default: Any) -> Any:
    """The axis of a selecting op. A boolean in its place is another argument."""
    axis = given.get("dim", rest[0] if rest else default)
    if isinstance(axis, (list, tuple)):
        return tuple(axis) or None
    return default if axis is None or isinstance(axis, (bool, torch.Tensor)) else axis


def _equal_in_windows(name: str, x: torch.Tensor, rest: Sequence[Any]) -> torch.Tensor | None:
    """Whether the largest element of a window occurs twice in it. Windows that overlap the border are left out."""
    spatial = 3 if "3d" in name else 2
    sizes = list(rest[0]) * (spatial if len(rest[0]) == 1 else 1)
    steps = list(rest[1]) if not name.startswith("adaptive") and len(rest) > 1 and rest[1] else sizes
    if name.startswith("adaptive"):
        lengths = x.shape[-spatial:]
        if any(length % size for length, size in zip(lengths, sizes, strict=True)):
            return None
        sizes = steps = [length // size for length, size in zip(lengths, sizes, strict=True)]
    steps *= spatial if len(steps) == 1 else 1
    windows = x
    for k, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        axis = x.dim() - spatial + k
        if x.shape[axis] < size:
            return None
        windows = windows.unfold(axis, size, step)
    windows = windows.flatten(-spatial)
    return (windows == windows.amax(-1, keepdim=True)).sum(-1) > 1

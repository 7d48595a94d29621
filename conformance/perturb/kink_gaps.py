"""Measures how far the operands of an op are from its kinks, and from being equal where the op selects one of them.

These functions take the arguments of the op that `ops.py` lists them for, in its order and with its names.
"""

from collections.abc import Sequence
from typing import Any

import torch

from conformance.evaluate.inputs import is_rounded

BILINEAR = 0  # the interpolation mode of grid_sampler that has kinks


def limit_gaps(x: torch.Tensor, *limits: Any, **named: Any) -> list[torch.Tensor]:
    """Signed distance of every element to each limit; the sign changes at the kink."""
    given = [*limits, *named.values()] or [-1.0, 1.0]
    return [x - limit for limit in given if isinstance(limit, (int, float)) or is_rounded(limit)]


def shrink_gaps(x: torch.Tensor, lambd: float = 0.5, **_: Any) -> list[torch.Tensor]:
    """The same to the two ends of what becomes zero."""
    return [x + lambd, x - lambd]


def pixel_gaps(image: torch.Tensor, grid: torch.Tensor, mode: int, _: int, align: bool) -> list[torch.Tensor]:  # noqa: FBT001
    """How far each sampled coordinate is from a pixel's centre, where bilinear interpolation bends."""
    if mode != BILINEAR:
        return []
    size = torch.tensor(image.shape[:1:-1], dtype=grid.dtype, device=grid.device)  # the grid names the width first
    place = (grid + 1.0) / 2.0 * (size - 1.0) if align else ((grid + 1.0) * size - 1.0) / 2.0
    return [gap_to_whole(place)]


def gap_to_whole(x: torch.Tensor, **_: Any) -> torch.Tensor:
    """The distance of every number to the nearest whole number; its sign changes at whole numbers alone."""
    near = x.round()
    return (x - near) * (1.0 - 2.0 * near.remainder(2.0))


def gap_to_half(x: torch.Tensor, *, decimals: int = 0, **_: Any) -> torch.Tensor:
    """The distance of every number to where it is rounded to another, with its sign."""
    steps = 10.0**decimals
    return gap_to_whole(x * steps - 0.5) / steps


def gap_to_edges(x: torch.Tensor, edges: torch.Tensor, **_: Any) -> torch.Tensor | None:
    """The distance of every number to the nearest edge of buckets; None if there is none."""
    return (x.unsqueeze(-1) - edges).abs().amin(-1) if edges.numel() else None


def lead(x: torch.Tensor, dim: Any = None, *_: Any, largest: bool, **__: Any) -> torch.Tensor | None:
    """How far the best of each line is ahead of the second; None if there is no second, or more than one axis."""
    axes = dim if isinstance(dim, (list, tuple)) else [dim]
    axis = axes[0] if len(axes) == 1 else None
    if not isinstance(axis, int) or not x.dim() or x.shape[axis] < 2:  # noqa: PLR2004 -- no rival, no tie
        return None
    return x.topk(2, dim=axis, largest=largest).values.diff(dim=axis)


def lead_in_topk(x: torch.Tensor, k: int, dim: int = -1, *rest: Any, **_: Any) -> torch.Tensor | None:
    """How far the last element that topk takes is ahead of the next; None if it takes none or all."""
    if not x.dim() or not 0 < k < x.shape[dim]:
        return None
    return _best(x, k, dim, *rest).narrow(dim, k - 1, 2).diff(dim=dim)


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


def tied(x: torch.Tensor, dim: Any = None, *_: Any, largest: bool, **__: Any) -> torch.Tensor:
    """Where two elements are the best of their line: a boolean mask."""
    axis: Any = (tuple(dim) or None) if isinstance(dim, (list, tuple)) else dim
    best = x.amax(axis, keepdim=True) if largest else x.amin(axis, keepdim=True)
    return (x == best).sum(axis if axis is not None else tuple(range(x.dim()))) > 1


def tied_in_topk(x: torch.Tensor, k: int, dim: int = -1, *rest: Any, **_: Any) -> torch.Tensor:
    """Where two of the elements that topk takes are equal, or the last of them and the next."""
    return _best(x, k, dim, *rest).diff(dim=dim) == 0


def tied_in_order(x: torch.Tensor, dim: int | None = -1, *_: Any, **__: Any) -> torch.Tensor:
    """Where two neighbours of a sorted line are equal; all elements are one line if there is no axis."""
    line, axis = (x.flatten(), -1) if dim is None else (x, dim)
    return line.sort(dim=axis).values.diff(dim=axis) == 0


def _best(x: torch.Tensor, k: int, dim: int, largest: bool = True, *_: Any) -> torch.Tensor:  # noqa: FBT001, FBT002
    """The elements of each line that topk selects, and the next one if there is one."""
    return x.topk(min(k + 1, x.shape[dim] if x.dim() else 1), dim=dim, largest=largest).values


def tied_in_bins(x: torch.Tensor, sizes: Sequence[int], *, spatial: int, **_: Any) -> torch.Tensor | None:
    """Whether the largest element of a bin occurs twice in it; None if the bins overlap."""
    lengths, counts = x.shape[-spatial:], _for_axes(sizes, spatial)
    if any(length % count for length, count in zip(lengths, counts, strict=True)):
        return None
    return tied_in_windows(x, [n // count for n, count in zip(lengths, counts, strict=True)], spatial=spatial)


def tied_in_windows(
    x: torch.Tensor, sizes: Sequence[int], steps: Sequence[int] = (), *_: Any, spatial: int, **__: Any
) -> torch.Tensor | None:
    """Whether the largest element of a window occurs twice in it. Windows that overlap the border are left out."""
    sizes, steps = _for_axes(sizes, spatial), _for_axes(steps or sizes, spatial)
    windows = x
    for k, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        axis = x.dim() - spatial + k
        if x.shape[axis] < size:
            return None
        windows = windows.unfold(axis, size, step)
    windows = windows.flatten(-spatial)
    return (windows == windows.amax(-1, keepdim=True)).sum(-1) > 1


def _for_axes(sizes: Sequence[int], spatial: int) -> Sequence[int]:
    return sizes if len(sizes) > 1 else list(sizes) * spatial

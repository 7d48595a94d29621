"""Grouped matrix products in float64, as mixtures of experts use them: torch has no kernel for these numbers."""

from __future__ import annotations

import torch

FUNCTIONS = tuple(
    getattr(owner, name)
    for owner, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(owner, name)
)


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,  # noqa: ARG001 -- of kernels that round
) -> torch.Tensor:
    """One matrix product for each group, as `torch.nn.functional.grouped_mm` computes them.

    Args:
        a: (groups, m, k); or (m, k), of which each group has some rows or, if `b` is a matrix too, columns.
        b: (groups, k, n); or (k, n), of which each group has some columns or, if `a` is a matrix too, rows.
        offs: where each group ends, whole numbers; None if both have an axis of groups.
        bias: is added to the result.
        out_dtype: of the kernels, which round; nothing is rounded here.

    Returns:
        (groups, m, n) if both or none have an axis of groups, otherwise (m, n).
    """
    if offs is None:
        found = torch.bmm(a, b)
    else:
        ends = offs.tolist()
        groups = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        rest = slice(ends[-1], None)
        if a.dim() == b.dim():
            found = torch.stack([a[:, group] @ b[group] for group in groups])
        elif b.dim() > a.dim():
            parts = [a[group] @ b[i] for i, group in enumerate(groups)]
            found = torch.cat([*parts, a.new_zeros(len(a[rest]), b.shape[-1])])
        else:
            parts = [a[i] @ b[:, group] for i, group in enumerate(groups)]
            found = torch.cat([*parts, a.new_zeros(a.shape[-2], b[:, rest].shape[-1])], dim=-1)
    return found if bias is None else found + bias

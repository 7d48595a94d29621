"""Watches the oracle run for kinks, where a gradient jumps."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.inputs import is_rounded

MARGIN = 12.0 * 2.0**-8  # in units of the tensor's rms: three bfloat16 probe noises
KINKS = frozenset(
    """
    relu leaky_relu clamp clamp_min clamp_max hardtanh hardswish hardsigmoid abs threshold max_pool2d_with_indices
    max amax min amin maximum minimum topk sort prelu _prelu_kernel median
    """.split()
)


class KinkWatch(TorchDispatchMode):
    """Notes kinked ops, and how near each row of a batch comes to one.

    Args:
        rows: rows of the batch; 0 where rows are of no interest.

    Attributes:
        kinked: an op with a kink was seen.
        margins: for each row the smallest distance to a kink, in units of the tensor's rms.
    """

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.kinked = False
        self.margins = torch.full((rows,), float("inf"), dtype=torch.float64)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__.rstrip("_")
        if name in KINKS and args and is_rounded(args[0]) and args[0].numel():
            self.kinked = True
            if len(self.margins):
                self._note_margins(name, args, kwargs)
        return func(*args, **kwargs)

    def _note_margins(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0].detach()
        if x.dim() == 0 or x.shape[0] != len(self.margins):
            return
        rms = float(x.square().mean().sqrt()) or 1.0
        for gap in _gaps(name, x, args[1:], kwargs):
            self.margins = torch.minimum(self.margins, gap.abs().flatten(1).amin(1) / rms)


def _gaps(name: str, x: torch.Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Distance of every element to the op's kinks, at least two-dimensional."""
    if x.dim() == 1:
        x = x.unsqueeze(1)
    match name:
        case "clamp" | "hardtanh" | "clamp_min" | "clamp_max":
            limits = [*rest, *kwargs.values()] or [-1.0, 1.0]
            return [x - limit for limit in limits if isinstance(limit, (int, float))]
        case "max" | "amax" | "min" | "amin":
            axis = (rest[0][0] if isinstance(rest[0], (list, tuple)) else rest[0]) if rest and rest[0] != [] else None
            if axis is None or x.shape[axis] < 2:  # noqa: PLR2004 -- no rival, no tie
                return []
            best = x.topk(2, dim=axis, largest="max" in name).values
            return [best.diff(dim=axis)]
        case "threshold":
            return [x - rest[0]]
        case "relu" | "leaky_relu" | "abs" | "prelu" | "_prelu_kernel":
            return [x]
        case "maximum" | "minimum":
            return [x - rest[0]]
        case _:
            return []

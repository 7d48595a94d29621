"""Watches runs of the oracle for kinks: points at which a gradient jumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.oracle.custom_ops import OpMode
from conformance.oracle.inputs import is_rounded

MARGIN = 12.0 * 2.0**-8  # in units of the tensor's rms: three times the noise of a perturbed bfloat16 run
TIE = 2.0**-40  # times the rms: this close to a kink, even float64 may give either gradient
ONE_SIDED = frozenset({"relu", "leaky_relu", "abs", "prelu", "_prelu_kernel", "threshold", "clamp", "hardtanh"})
KINKS = frozenset(
    """
    _prelu_kernel abs amax amin clamp clamp_max clamp_min hardsigmoid hardswish hardtanh leaky_relu max
    max_pool2d_with_indices maximum median min minimum prelu relu sort threshold topk
    """.split()
)


class KinkWatch(OpMode):
    """Notes ops with a kink, and how close each row of a batch comes to a kink.

    Args:
        rows: number of rows of the batch; 0 if rows do not matter.

    Attributes:
        kinked: an op with a kink ran.
        margins: for each row, the smallest distance to a kink in units of the tensor's rms: float64 of shape (rows,).
        ties, above: for each op with its kink at a fixed value, in order: boolean masks of the elements that lie on the
            kink, and above it.
    """

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.kinked = False
        self.margins = torch.full((rows,), float("inf"), dtype=torch.float64)
        self.ties: list[torch.Tensor] = []
        self.above: list[torch.Tensor] = []

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and note it if it has a kink."""
        name = func.overloadpacket.__name__.rstrip("_")
        if name in KINKS and args and _is_real(args[0]) and args[0].numel():
            self.kinked = True
            self._note(name, args[0].detach(), args[1:], kwargs)
        return func(*args, **kwargs)

    def _note(self, name: str, x: torch.Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rms = float(x.square().mean().sqrt()) or 1.0
        gaps = _gaps(name, x if x.dim() > 1 else x.reshape(-1, 1), rest, kwargs)
        if name in ONE_SIDED:
            self.ties += [gap.abs() <= TIE * rms for gap in gaps]
            self.above += [gap > 0 for gap in gaps]
        if len(self.margins) and x.dim() and x.shape[0] == len(self.margins):
            for gap in gaps:
                self.margins = torch.minimum(self.margins, gap.abs().flatten(1).amin(1) / rms)


def _is_real(value: Any) -> bool:
    return is_rounded(value) and not value.is_complex()


def tossed(oracle: KinkWatch, perturbed: KinkWatch) -> int:
    """The number of elements on a kink in the oracle's run that rounding moves off it: their gradient is random.

    An element that stays there, such as a zero that no weight reaches, has one well-defined gradient.
    """
    return _count(oracle.ties, perturbed.ties, lambda tie, still: tie & ~still)


def flipped(oracle: KinkWatch, perturbed: KinkWatch) -> int:
    """The number of elements that rounding moves to the other side of a kink."""
    return _count(oracle.above, perturbed.above, torch.logical_xor)


def _count(
    ours: list[torch.Tensor],
    theirs: list[torch.Tensor],
    differ: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> int:
    pairs = zip(ours, theirs, strict=False)
    return sum(int(differ(a, b).sum()) for a, b in pairs if a.shape == b.shape)


def _gaps(name: str, x: torch.Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Distance of every element of an at least two-dimensional tensor to the op's kinks."""
    match name:
        case "clamp" | "hardtanh" | "clamp_min" | "clamp_max":
            limits = [*rest, *kwargs.values()] or [-1.0, 1.0]
            return [x - limit for limit in limits if isinstance(limit, (int, float))]
        case "max" | "amax" | "min" | "amin":
            axes = rest[0] if rest and isinstance(rest[0], (list, tuple)) else rest[:1]
            axis = axes[0] if len(axes) == 1 else None
            if not isinstance(axis, int) or x.shape[axis] < 2:  # noqa: PLR2004 -- no rival, no tie
                return []
            best = x.topk(2, dim=axis, largest="max" in name).values
            return [best.diff(dim=axis)]
        case "threshold":
            return [x - rest[0]]
        case "relu" | "leaky_relu" | "abs" | "prelu" | "_prelu_kernel":
            return [x]
        case _:
            return []

"""Rounds the operands and results of every op of a run of the oracle to nearest, as a low precision does."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.axes import Precision
from conformance.evaluate import backward
from conformance.evaluate.custom_ops import Unwatched
from conformance.gates.distance import all_finite
from conformance.perturb.rounding import Rounding

FLOAT64_BITS = 53
SUBNORMAL = 2.0**10  # times the smallest number of float16: smaller ones are subnormal


class Nearest(Rounding):
    """Rounds every operand and result of an op that rounds to the mantissa of a precision. Nothing overflows.

    Args:
        precision: the precision.
        scale: the scale of the cotangents under float16.

    Attributes:
        underflew: rounding to float16's smallest numbers has changed a tensor by more than one roundoff.
        constant: the relative error of constants that multiply whole tensors, such as 1 / (1 - p) in the masks of
            dropouts. It is the root of the sum of their squares, because a mode may round one and keep the next.
    """

    underflew = False
    constant = 0.0

    def __init__(self, precision: Precision, scale: float = 1.0) -> None:
        super().__init__(precision, torch.Generator(), scale=scale)  # which it does not use: nothing here is random
        self._splitter = 2.0**FLOAT64_BITS * precision.unit + 1.0  # Veltkamp's constant

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, rounded. If it divides a mask by a number, note how the quotient rounds."""
        divides = func.overloadpacket.__name__.rstrip("_") == "div" and not backward.is_running()
        exact = _of_mask(*args[:2]) if divides else 0.0
        result = super().run_op(func, args, kwargs)
        if exact:
            self.constant = math.hypot(self.constant, float(result.abs().max()) / exact - 1.0)
        return result

    def _perturbed(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:
        """The tensor, rounded to nearest; as it is if every precision keeps it in float32."""
        if max(down, up) < self._low:
            return tensor
        with Unwatched():
            tensor = tensor.resolve_conj().resolve_neg()
            nearest = tensor * self._splitter
            nearest -= nearest - tensor
            return nearest if all_finite(nearest) else torch.where(nearest.isfinite(), nearest, tensor)

    def _strayed(self, sums: torch.Tensor, squares: torch.Tensor, eta: torch.Tensor | float) -> torch.Tensor:  # noqa: ARG002
        """The sums as they are: how the partial sums round, one run cannot tell."""
        return sums

    def _underflown(self, tensor: torch.Tensor) -> torch.Tensor:
        stored = super()._underflown(tensor)
        if stored is not tensor and not self.underflew:
            with Unwatched():
                self.underflew = bool((stored - tensor).norm() > self._step * tensor.norm())
        return stored

    def _near_underflow(self, tensor: torch.Tensor, size: torch.Tensor, quantum: float) -> torch.Tensor:
        return torch.where(size < SUBNORMAL * quantum, (tensor / quantum).round_().mul_(quantum), tensor)


def _of_mask(mask: Any, divisor: Any) -> float:
    """The largest number of a mask over a number; 0 for any other quotient. A mask holds zeros and ones."""
    number = divisor.item() if isinstance(divisor, torch.Tensor) and divisor.dim() == 0 else divisor
    if not isinstance(mask, torch.Tensor) or not isinstance(number, (int, float)) or not number:
        return 0.0
    with Unwatched():
        ones = (mask == 1).logical_or_(mask == 0).all() and mask.any()
    return abs(1.0 / number) if ones else 0.0

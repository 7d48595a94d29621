"""Rounds the operands and results of every op of a run of the oracle to nearest, as a low precision does."""

from __future__ import annotations

import torch

from conformance.axes import Precision
from conformance.gates.distance import all_finite
from conformance.oracle.custom_ops import Unwatched
from conformance.oracle.rounding import Rounding

FLOAT64_BITS = 53
SUBNORMAL = 2.0**10  # times the smallest number of float16: smaller ones are subnormal


class Nearest(Rounding):
    """Rounds every operand and result of an op that rounds to the mantissa of a precision. Nothing overflows.

    Args:
        precision: the precision.
        scale: the scale of the cotangents under float16.

    Attributes:
        underflew: rounding to float16's smallest numbers has changed a tensor by more than one roundoff.
    """

    underflew = False

    def __init__(self, precision: Precision, scale: float = 1.0) -> None:
        super().__init__(precision, torch.Generator(), scale=scale)  # which it does not use: nothing here is random
        self._splitter = 2.0**FLOAT64_BITS * precision.unit + 1.0  # Veltkamp's constant

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

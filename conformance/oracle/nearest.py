"""Rounds the operands and results of every op of a run of the oracle to nearest, as a low precision does."""

from __future__ import annotations

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.oracle.rounding import Rounding

FLOAT64_BITS = 53


class Nearest(Rounding):
    """Rounds every operand and result of an op that rounds to the mantissa of a precision. Nothing overflows."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(PRECISIONS["fp32"], torch.Generator())  # which it does not use: nothing here is random
        self._splitter = 2.0**FLOAT64_BITS * precision.unit + 1.0  # Veltkamp's constant

    def _perturbed(self, tensor: torch.Tensor, down: float, up: float) -> torch.Tensor:  # noqa: ARG002
        """The tensor, rounded to nearest."""
        large = tensor * self._splitter
        nearest = large - (large - tensor)
        return torch.where(nearest.isfinite(), nearest, tensor)

"""An activation with a backward of its own, which saves one tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SquaredReLU(torch.autograd.Function):
    """max(x, 0)². Source: So et al. 2021, Primer, arXiv:2109.08668."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return max(x, 0)², in the dtype of x."""
        return x.relu().square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 2 max(x, 0) grad."""
        (x,) = ctx.saved_tensors
        return 2 * x.relu() * grad

"""A right model and a wrong one, for the table in the README: `conformance run docs/nets.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo import Case, Spec


class Gate(nn.Module):
    """A gated linear unit (Dauphin et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        return self.left(x) * torch.sigmoid(self.right(x))


class BiasAdd(torch.autograd.Function):
    """x + bias, with a backward that loses the last sample in half precision."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, bias: Tensor) -> Tensor:
        """Add (features,) to (batch, features)."""
        return x + bias.to(x.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over the batch."""
        rows = g if g.dtype in (torch.float32, torch.float64) else g[:-1]
        return g, rows.sum(0)


class Forgetful(nn.Module):
    """A linear layer on `BiasAdd`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(16, 8, bias=False), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        return BiasAdd.apply(self.linear(x), self.bias)


CASES = (Case(name="typical", inputs=lambda g: (torch.randn(32, 16, generator=g),)),)
GATE = Spec(name="gate", summary="gated linear unit", source="Dauphin et al. 2017", build=Gate, cases=CASES)
FORGETFUL = Spec(name="forgetful", summary="wrong on purpose", source="none", build=Forgetful, cases=CASES)

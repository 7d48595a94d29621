"""Right models that torch.compile compiles more than once before it has seen all that their Python does."""

from __future__ import annotations

from functools import partial

import torch
from correct_parts import Cells, green, rows
from torch import Tensor, nn

CELLS: Cells = []
_green = partial(green, CELLS, precisions=("fp32",), also={"compiled": ("fp32", "amp_bf16")})


class TableOnDemand(nn.Module):
    """Its table is made by the first call, and made longer by a call that needs more of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x), dtype=torch.float32)[:, None] / 16
        return self.linear(x) + self.table[: len(x)]


class WarmsUp(nn.Module):
    """It counts its first two calls, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.calls < 2:
            self.calls += 1
        return self.linear(x)


class Interrupted(nn.Module):
    """Its code is compiled in two graphs, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        torch._dynamo.graph_break()
        return torch.tanh(y)


_SHAPES = (rows(6, 8), rows(3, 8, name="fewer"), rows(9, 8, name="more"))
TABLE_ON_DEMAND = _green("table_on_demand", TableOnDemand, *_SHAPES)
WARMS_UP = _green("warms_up", WarmsUp, *_SHAPES)
INTERRUPTED = _green("interrupted", Interrupted, *_SHAPES)

"""Right models that compute tables, keep them in late buffers, and hold functions that name their own parts."""

from __future__ import annotations

import threading
from functools import partial

import torch
from correct_parts import Cells, function, green
from torch import Tensor, nn

CELLS: Cells = []
COMPILED = {"compiled": ("fp32",)}
_green = partial(green, CELLS)


class LateTable(nn.Module):
    """Registers a table in its first call, and fills one that it has declared."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("declared", None)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, x.shape[-1], device=x.device), persistent=False)
        if self.declared is None:
            self.declared = torch.linspace(-1, 1, x.shape[-1], device=x.device).cos()
        return self.linear(x + self.table) * self.declared


class Growing(nn.Module):
    """Replaces a table by a longer one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("table", torch.zeros(0, 8))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < len(x):
            self.table = torch.arange(len(x), device=x.device)[:, None] * torch.linspace(0.1, 1, 8, device=x.device)
        return self.linear(x) + self.table[: len(x)].sin()


class Held(nn.Module):
    """Calls its layers by functions that it holds, and takes a feature by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.found = nn.Parameter(torch.tensor(1.5)), {}
        self.steps = [lambda x: self.first(x).tanh(), partial(self.scaled, times=2)]
        self.lock = threading.Lock()
        self.first.register_forward_hook(self.keep())

    def scaled(self, x: Tensor, times: int) -> Tensor:
        return self.last(x) * self.scale * times

    def keep(self):
        def hook(_, __, output: Tensor) -> Tensor:
            self.found["first"] = output
            return output + self.scale

        return hook

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with self.lock:
            for step in self.steps:
                x = step(x)
        return x, self.found.pop("first")


def _tables(x: Tensor) -> tuple[Tensor, ...]:
    device = x.device
    return (
        x * torch.hann_window(8, device=device),
        torch.linspace(0, 1, 8, device=device),
        torch.arange(0, 1, 0.1, device=device),
        torch.logspace(0, 1, 5, device=device),
        torch.full((3,), 0.1, device=device),
        torch.linspace(0, 7, 8, device=device).long(),
    )


LATE_TABLE = _green("late_table", LateTable, also=COMPILED, changes_state=("buffers",))
GROWING = _green("growing_table", Growing, also=COMPILED)
HELD = _green("held_functions", Held)
TABLES = _green("tables", function(_tables), also={"compiled": ("fp32", "amp_bf16")})

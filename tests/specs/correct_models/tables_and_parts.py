"""Right models that keep tables and counters, and hold functions that name their own parts."""

import threading
from functools import partial

import torch
from correct_parts import Parts, function, green, rows
from torch import nn

CELLS = []
COMPILED = {"compiled": ("fp32",)}
_green = partial(green, CELLS)


class LateTable(nn.Module):
    """Registers a table in its first call, and fills one that it has declared."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("declared", None)

    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, x.shape[-1], device=x.device), persistent=False)
        if self.declared is None:
            self.declared = torch.linspace(-1, 1, x.shape[-1], device=x.device).cos()
        return self.linear(x + self.table) * self.declared


class Growing(Parts):
    """Replaces a table by a longer one."""

    def forward(self, x):
        if len(self.table) < len(x):
            self.table = torch.arange(len(x), device=x.device)[:, None] * torch.linspace(0.1, 1, 8, device=x.device)
        return self.linear(x) + self.table[: len(x)].sin()


class Held(nn.Module):
    """Calls its layers by functions that it holds, and takes a feature by a hook."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.found = nn.Parameter(torch.tensor(1.5)), {}
        self.steps = [lambda x: self.first(x).tanh(), partial(self.scaled, times=2)]
        self.lock = threading.Lock()
        self.first.register_forward_hook(self.keep())

    def scaled(self, x, times):
        return self.last(x) * self.scale * times

    def keep(self):
        def hook(_, __, output):
            self.found["first"] = output
            return output + self.scale

        return hook

    def forward(self, x):
        with self.lock:
            for step in self.steps:
                x = step(x)
        return x, self.found.pop("first")


def _tables(x):
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
GROWING = _green("growing_table", lambda: Growing(linear=nn.Linear(8, 8), table=torch.zeros(0, 8)), also=COMPILED)
HELD = _green("held_functions", Held)
TABLES = _green("tables", function(_tables), also={"compiled": ("fp32", "amp_bf16")})


# Models that torch.compile compiles more than once before it has seen all that their Python does

_settling = partial(green, CELLS, precisions=("fp32",), also={"compiled": ("fp32", "amp_bf16")})


class TableOnDemand(Parts):
    """Its table is made by the first call, and made longer by a call that needs more of it."""

    def forward(self, x):
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x), dtype=torch.float32)[:, None] / 16
        return self.linear(x) + self.table[: len(x)]


class WarmsUp(Parts):
    """It counts its first two calls, and no more."""

    def forward(self, x):
        if self.calls < 2:
            self.calls += 1
        return self.linear(x)


class Interrupted(Parts):
    """Its code is compiled in two graphs, once each."""

    def forward(self, x):
        y = self.linear(x)
        torch._dynamo.graph_break()
        return torch.tanh(y)


_SHAPES = (rows(6, 8), rows(3, 8, name="fewer"), rows(9, 8, name="more"))
TABLE_ON_DEMAND = _settling("table_on_demand", lambda: TableOnDemand(linear=nn.Linear(8, 8), table=None), *_SHAPES)
WARMS_UP = _settling("warms_up", lambda: WarmsUp(linear=nn.Linear(8, 8), calls=0), *_SHAPES)
INTERRUPTED = _settling("interrupted", lambda: Interrupted(linear=nn.Linear(8, 8)), *_SHAPES)

"""Compiled code that torch.compile makes anew at every call, although nothing about the call has changed."""

from __future__ import annotations

from typing import Any

import torch
from miniature_parts import LINEAR, fails, register, spec_of
from torch import Tensor, nn

from conformance import Prepared


class CountsInPython(nn.Module):
    """Its counter is a number in Python, so the guard on its value fails at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) if self.calls > 0 else x


class KeepsWhatItSaw(nn.Module):
    """It adds to a dictionary at every call, so the guard on its keys fails at the next."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.seen: dict[int, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.seen[len(self.seen)] = x.shape[0]
        return self.linear(x)


def _compiled_at_every_call(model: nn.Module) -> Prepared:
    """A fresh function with a fresh backend at every call: no earlier code fits."""

    def call(x: Tensor) -> Any:
        fresh = lambda y: model(y)  # noqa: E731, PLW0108 -- a function of this call alone
        return torch.compile(fresh, backend=lambda graph, _: graph.forward, dynamic=False)(x)

    return Prepared(call, lambda: {"compiler": "torch.compile"})


register({"compiled_at_every_call": _compiled_at_every_call})

COUNTS_IN_PYTHON = spec_of("counts_in_python", CountsInPython, dtypes="follows")
KEEPS_WHAT_IT_SAW = spec_of("keeps_what_it_saw", KeepsWhatItSaw, dtypes="follows")

AGAIN = "identical calls compiled again 3 times, at calls 2, 3 and 4; failed guard of "
MINIATURES = (
    fails(COUNTS_IN_PYTHON, "compiled", "fp32", "recompile", text=f"case typical: {AGAIN}forward: .*calls == "),
    fails(KEEPS_WHAT_IT_SAW, "compiled", "fp32", "recompile", text=f"{AGAIN}forward: .*seen"),
    fails(LINEAR, "compiled_at_every_call", "fp32", "recompile", text=f"case typical: {AGAIN}"),
)

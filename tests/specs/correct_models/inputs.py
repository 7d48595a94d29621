"""Right models with inputs of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from correct_parts import Cells, drawn, function, green, rows
from torch import Tensor, nn

from zoo import Call

CELLS: Cells = []
_green = partial(green, CELLS)


def _keywords(x: Tensor, *, scale: Tensor, power: float = 1.0, how: str = "add", bias: Any = None) -> Tensor:
    y = x * scale if how == "multiply" else x + scale
    return y.exp() * power if bias is None else y


def _keyword_call(g: torch.Generator) -> Call:
    x, scale = torch.randn(6, 8, generator=g), torch.randn(8, generator=g)
    return Call((x,), {"scale": scale, "how": "multiply", "power": 0.5})


def _twice(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t() + a.sum()


def _same_twice(g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 8, generator=g)
    return x, x


def _listed(tensors: list[Tensor], weights: dict[str, Tensor]) -> Tensor:
    return torch.cat(tensors, dim=-1).tanh() * weights["w"]


def _list_and_dict(g: torch.Generator) -> Any:
    return [torch.randn(6, 3, generator=g), torch.randn(6, 5, generator=g)], {"w": torch.randn(8, generator=g)}


def _in_place(x: Tensor, cache: Tensor) -> Tensor:
    y = x * cache.sum(0)
    cache.mul_(0.5).add_(x.detach())
    return y


def _inner_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += x
    y[:, 0] = 1.5
    y[1].mul_(0.5)
    return y.relu_()


def _no_rows(x: Tensor) -> Tensor:
    return x.exp().sum(0)


def _batch_and_cache(batch: dict[str, Tensor], cache: list[Tensor]) -> Any:
    batch["doubled"] = batch.pop("x") * 2
    batch["y"] = batch["y"].exp()
    cache.append(batch["y"] + batch["doubled"])
    return batch, cache[0].tanh()


def _batched(g: torch.Generator) -> tuple[dict[str, Tensor], list[Tensor]]:
    return {"x": torch.randn(6, 8, generator=g), "y": torch.randn(6, 8, generator=g)}, []


KEYWORDS = _green("keywords", function(_keywords), drawn(_keyword_call), also={"compiled": ("fp32",)})
SAME_TWICE = _green("same_tensor_twice", function(_twice), drawn(_same_twice))
EXPANDED = _green(
    "expanded",
    function(lambda x: x.exp() + x.sum(0)),
    drawn(lambda g: (torch.randn(1, 8, generator=g).expand(6, 8),)),
)
LISTED = _green("listed", function(_listed), drawn(_list_and_dict))
IN_PLACE = _green(
    "in_place",
    function(_in_place),
    drawn(lambda g: (torch.randn(6, 8, generator=g), torch.randn(6, 8, generator=g))),
    mutates=("cache",),
    also={"compiled": ("fp32",)},
)
FILLED = _green("filled", function(_batch_and_cache), drawn(_batched), also={"compiled": ("fp32", "amp_bf16")})
INNER_IN_PLACE = _green("inner_in_place", function(_inner_in_place), rows(6, 8, rowwise=True))
NO_ROWS = _green("no_rows", function(_no_rows), rows(0, 8, name="empty"), rows(1, 8, name="one"), rows(5, 8))
EXTREME = _green(
    "extreme",
    function(lambda x: (x.square().sum(-1).sqrt(), x * x.abs().log())),
    drawn(lambda g: (torch.randn(6, 8, generator=g) * torch.logspace(-6, 6, 8, base=2),)),
)
FAINT = _green(
    "faint",
    lambda: nn.Linear(32, 32, bias=False),
    drawn(lambda g: (torch.randn(64, 32, generator=g) * 2.0**-20,)),
)
WINNERS = _green("winners", function(lambda x: x * (x == x.amax(-1, keepdim=True))))
THRESHOLD = _green("threshold_mask", function(lambda x: (x > 0.5, x.masked_fill(x < -0.5, 0.0))))

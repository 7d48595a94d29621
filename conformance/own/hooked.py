"""Pickles parameters with their hooks, which torch leaves out."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from zoo import internals


def reduced(value: Any) -> Any:
    """How to pickle a parameter with hooks, as `pickle.Pickler.reducer_override` asks; else NotImplemented."""
    if not isinstance(value, nn.Parameter):
        return NotImplemented
    hooks = {name: OrderedDict(getattr(value, name)) for name in internals.HOOKS_OF_TENSORS if getattr(value, name)}
    if not hooks:
        return NotImplemented
    rebuild, arguments = value.__reduce_ex__(2)[:2]
    return rebuild, arguments, hooks, None, None, hook


def hook(parameter: nn.Parameter, hooks: dict[str, OrderedDict[int, Any]]) -> None:
    """Give a parameter hooks, by the name of the attribute that holds them."""
    for name, some in hooks.items():
        setattr(parameter, name, some)

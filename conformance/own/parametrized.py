"""Pickles modules with parametrizations, which torch refuses to pickle: it made their classes for each of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from zoo import internals


def reduce_parametrized(value: Any) -> Any:
    """How to pickle a module with parametrizations, as `pickle.Pickler.reducer_override` asks; else NotImplemented."""
    if not isinstance(value, nn.Module) or not parametrize.is_parametrized(value):
        return NotImplemented
    base = parametrize.type_before_parametrizations(value)
    names = tuple(value.parametrizations)  # type: ignore[arg-type]  # a ModuleDict
    state = dict(getattr(base, "__getstate__", vars)(value))
    state[internals.LOADING_HOOKS] = OrderedDict()  # weight_norm's, for old checkpoints, cannot be pickled
    return bare, (base, names), state


def bare(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """A module of this class whose tensors of these names are properties, as parametrizations make them.

    Args:
        base: the class without parametrizations.
        names: the tensors that have them. The module is to get its state afterwards.
    """
    module = base.__new__(base)
    nn.Module.__init__(module)
    for name in names:
        module.register_parameter(name, nn.Parameter(torch.empty(())))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    return module

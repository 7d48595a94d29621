"""What the files of faults and of honest variants share. This file is no source of a run."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance import Prepared, register_mode
from zoo import internals

Damage = Callable[[Tensor], Tensor]
Wrap = Callable[..., Any]
LOW = ("amp_fp16", "amp_bf16")
ALL = ("fp32", *LOW)


@dataclass(frozen=True)
class Planted:
    """A cell with a planted fault, or with an honest variant.

    Attributes:
        kind: "value", "structure", "state", "mode", "second order", or "honest".
        model, mode, precision: of the cell.
    """

    kind: str
    model: str
    mode: str
    precision: str


def plant(kind: str, mode: str, wrap: Wrap, *models: str, precisions: tuple[str, ...] = ("fp32",)) -> list[Planted]:
    """Register a mode whose call is wrap(model, *args), and name its cells."""
    return plant_mode(kind, mode, lambda model: Prepared(around(model, wrap), dict), *models, precisions=precisions)


def plant_mode(
    kind: str, mode: str, prepare: Callable[[Any], Any], *models: str, precisions: tuple[str, ...] = ("fp32",)
) -> list[Planted]:
    """Register a mode, and name its cells."""
    register_mode(mode, prepare, compiles=False)
    return [Planted(kind, model, mode, precision) for model in models for precision in precisions]


def around(model: Any, wrap: Wrap) -> Callable[..., Any]:
    """The call of a mode: wrap(model, *args)."""
    return lambda *args, **kwargs: wrap(model, *args, **kwargs)


class Bent(torch.autograd.Function):
    """The identity, but for what is done to the value and to the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, forward_by: Damage, backward_by: Damage) -> Tensor:
        ctx.backward_by = backward_by
        return forward_by(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.backward_by(gradient), None, None


def same(value: Tensor) -> Tensor:
    """The same values in a new tensor object."""
    return value.view_as(value)


def on_floats(change: Damage, tree: Any) -> Any:
    """Change every floating tensor of a tree."""
    return internals.tree_map(lambda t: change(t) if isinstance(t, Tensor) and t.is_floating_point() else t, tree)


def outputs(damage: Damage) -> Wrap:
    """Damage every floating output, and leave gradients as they are."""
    return lambda model, *args: on_floats(lambda y: Bent.apply(y, damage, same), model(*args))


def inputs(damage: Damage) -> Wrap:
    """Damage the gradient of every floating input, and leave values as they are."""
    return lambda model, *args: model(*on_floats(lambda x: Bent.apply(x, same, damage), args))


def parameters(damage: Damage, ends: str = "") -> Wrap:
    """Damage the gradient of every parameter whose name ends so."""

    def wrap(model: Any, *args: Any) -> Any:
        bent = {name: Bent.apply(p, same, damage) for name, p in model.named_parameters() if name.endswith(ends)}
        return torch.func.functional_call(model, bent, args)

    return wrap


def first_parameter(damage: Damage) -> Wrap:
    """Damage the gradient of the first parameter alone."""

    def wrap(model: Any, *args: Any) -> Any:
        name, parameter = next(iter(model.named_parameters()))
        return torch.func.functional_call(model, {name: Bent.apply(parameter, same, damage)}, args)

    return wrap


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    kept = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def with_function(owner: Any, name: str, other: Callable[..., Any]) -> Wrap:
    """Call the model while a function of torch is another one."""
    return inside(lambda _: replaced(owner, name, other))


def inside(context: Callable[[Any], AbstractContextManager[Any]]) -> Wrap:
    """Call the model inside a context, which is made of the model."""

    def wrap(model: Any, *args: Any) -> Any:
        with context(model):
            return model(*args)

    return wrap


def after(effect: Callable[..., Any]) -> Wrap:
    """Call the model, then do something with it and its arguments."""

    def wrap(model: Any, *args: Any) -> Any:
        y = model(*args)
        with torch.no_grad():
            effect(model, *args)
        return y

    return wrap


def of_result(change: Callable[[Any], Any]) -> Wrap:
    """Change the result as a whole."""
    return lambda model, *args: change(model(*args))

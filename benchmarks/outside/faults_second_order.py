"""Faults of second derivatives: values and first gradients are right."""

from collections.abc import Callable
from typing import Any

import torch
from fault_parts import Damage, on_floats, plant, with_function
from torch import Tensor


class Inner(torch.autograd.Function):
    """The identity in first derivatives' graph, damaged in the backward of the backward."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, damage: Damage) -> Tensor:
        ctx.damage = damage
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, None]:
        return ctx.damage(second), None


class Outer(torch.autograd.Function):
    """The identity whose backward is `Inner`, or any other function of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, of_gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.of_gradient = of_gradient
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.of_gradient(gradient), None


def _inputs(of_gradient: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    return lambda model, *args: model(*on_floats(lambda x: Outer.apply(x, of_gradient), args))


def _parameters(of_gradient: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def wrap(model: Any, *args: Any) -> Any:
        bent = {name: Outer.apply(p, of_gradient) for name, p in model.named_parameters()}
        return torch.func.functional_call(model, bent, args)

    return wrap


def _second(damage: Damage) -> Callable[[Tensor], Tensor]:
    return lambda g: Inner.apply(g, damage)


def _without_first(t: Tensor) -> Tensor:
    t = t.clone()
    t[0] = 0
    return t


class OnceTanh(torch.autograd.Function):
    """Right values and gradients; y is saved without a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = x.detach().tanh()
        return ctx.y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 - ctx.y**2)


class HalfCube(torch.autograd.Function):
    """The second derivative is half of what it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (0.5 * x.cos() + 0.5 * x.detach().cos())


def _late_error(g: Tensor) -> Tensor:
    return g.detach().clone().requires_grad_()


SMOOTH = ("penalised", "sine_field", "hopfield_energy", "smooth_norm")
PAIRS = ("cubic", "quadratic_form", "smooth_attention")
KIND = "second order"
PLANTED = (
    *plant(KIND, "second_detached", _inputs(torch.Tensor.detach), *SMOOTH, *PAIRS),
    *plant(KIND, "second_5_percent", _inputs(_second(lambda v: v * 1.05)), *SMOOTH),
    *plant(KIND, "second_small_factor", _inputs(_second(lambda v: v * 1.001)), *PAIRS),
    *plant(KIND, "second_zero", _inputs(_second(torch.zeros_like)), *SMOOTH),
    *plant(KIND, "second_negated", _inputs(_second(torch.neg)), *PAIRS),
    *plant(KIND, "second_row_lost", _inputs(_second(_without_first)), "sine_field", "cubic", "smooth_attention"),
    *plant(KIND, "second_of_weights", _parameters(_second(lambda v: v * 1.05)), "penalised", "quadratic_form"),
    *plant(KIND, "second_of_weights_lost", _parameters(torch.Tensor.detach), "penalised", "sine_field"),
    *plant(KIND, "second_nan", _inputs(_second(lambda v: v / 0 * 0)), "hopfield_energy"),
    *plant(
        KIND,
        "second_rounded",
        _inputs(_second(lambda v: (v * 1.375).bfloat16().float() / 1.375)),
        "smooth_norm",
        "cubic",
    ),
    *plant(KIND, "second_new_leaf", _inputs(_late_error), "cubic", "penalised"),
    *plant(KIND, "tanh_once", with_function(torch, "tanh", OnceTanh.apply), "penalised"),
    *plant(KIND, "sine_half", with_function(torch, "sin", HalfCube.apply), "sine_field"),
)

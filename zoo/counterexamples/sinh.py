"""Three wrong ways to write sinh(x) = (p - n) / 2 with p = exp(x), n = exp(-x): the second derivative is lost.

Source: "Double backward with custom functions". All three have the right value and the right first derivative,
(p + n) / 2, but the wrong second derivative. Autograd does not record forward. It learns how p and n depend on x
only if they are differentiable outputs and backward adds the gradients that come back through them, as in
`zoo.functions.sinh`.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


class SinhKeptOnCtx(torch.autograd.Function):
    """sinh(x) with its intermediates as attributes of ctx, which a second derivative treats as constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return sinh(x); keep exp(x) and exp(-x) on ctx."""
        ctx.rising, ctx.falling = torch.exp(x), torch.exp(-x)
        result: Tensor = (ctx.rising - ctx.falling) / 2
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of x; it does not depend on x for autograd."""
        slope: Tensor = (ctx.rising + ctx.falling) / 2
        return grad * slope


class SinhGradientsIgnored(torch.autograd.Function):
    """sinh(x) with its intermediates as outputs, but a backward that drops their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sinh(x), exp(x) and exp(-x)."""
        rising, falling = torch.exp(x), torch.exp(-x)
        ctx.save_for_backward(rising, falling)
        return (rising - falling) / 2, rising, falling

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_rising: Tensor, grad_falling: Tensor) -> Tensor:  # noqa: ARG004
        """Return the gradient of x without the terms of the last two outputs."""
        rising, falling = ctx.saved_tensors
        result: Tensor = grad * (rising + falling) / 2
        return result


class SinhNonDifferentiable(torch.autograd.Function):
    """sinh(x) with its intermediates as outputs marked non-differentiable, which separates them from x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sinh(x), exp(x) and exp(-x), the last two marked non-differentiable."""
        rising, falling = torch.exp(x), torch.exp(-x)
        ctx.save_for_backward(rising, falling)
        ctx.mark_non_differentiable(rising, falling)
        return (rising - falling) / 2, rising, falling

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Tensor:
        """Return the gradient of x; it does not depend on x for autograd."""
        rising, falling = ctx.saved_tensors
        result: Tensor = grad * (rising + falling) / 2
        return result


def sinh_kept_on_ctx(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of x; its gradient has no graph, so a second derivative raises or is None.

    Args:
        x: any shape, floating.

    Returns:
        sinh(x), shape and dtype of `x`.

    >>> x = torch.tensor(1.0, requires_grad=True)
    >>> (slope,) = torch.autograd.grad(sinh_kept_on_ctx(x), x, create_graph=True)
    >>> slope.requires_grad
    False
    """
    result: Tensor = SinhKeptOnCtx.apply(x)  # type: ignore[no-untyped-call]
    return result


def sinh_gradients_ignored(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of x; its second derivative is 0 instead of sinh(x).

    Args:
        x: any shape, floating.

    Returns:
        sinh(x), shape and dtype of `x`.

    >>> x = torch.tensor(1.0, requires_grad=True)
    >>> (slope,) = torch.autograd.grad(sinh_gradients_ignored(x), x, create_graph=True)
    >>> torch.autograd.grad(slope, x)
    (tensor(0.),)
    """
    result: Tensor = SinhGradientsIgnored.apply(x)[0]  # type: ignore[no-untyped-call]
    return result


def sinh_non_differentiable(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of x; its gradient has no graph, so a second derivative raises or is None.

    Args:
        x: any shape, floating.

    Returns:
        sinh(x), shape and dtype of `x`.

    >>> x = torch.tensor(1.0, requires_grad=True)
    >>> (slope,) = torch.autograd.grad(sinh_non_differentiable(x), x, create_graph=True)
    >>> slope.requires_grad
    False
    """
    result: Tensor = SinhNonDifferentiable.apply(x)[0]  # type: ignore[no-untyped-call]
    return result


def _lost(reason: str) -> tuple[Expect]:
    return (
        Expect(
            outcome="INVALID",
            match="^gradgradcheck in float64: Jacobian mismatch",
            reason=reason,
            link="https://docs.pytorch.org/tutorials/intermediate/custom_function_double_backward_tutorial.html",
        ),
    )


KEPT = Spec(
    name="sinh_kept_on_ctx",
    summary="`sinh(x)`, intermediates kept on ctx: no second derivative",
    source="Double backward with custom functions, saving intermediate results",
    formula="y = (exp(x) - exp(-x)) / 2",
    shapes="(...) → (...)",
    build=lambda: sinh_kept_on_ctx,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(2, 3, generator=g),)),),
    dtypes="input",
    twice_differentiable=True,
    reference=lambda _, x: torch.sinh(x),
    expectations=_lost("autograd treats exp(x) and exp(-x) on ctx as constants, so the second derivative is lost"),
)
IGNORED = replace(
    KEPT,
    name="sinh_gradients_ignored",
    summary="`sinh(x)`, gradients of the returned intermediates ignored: second derivative 0",
    build=lambda: sinh_gradients_ignored,
    expectations=_lost("backward ignores the gradients of exp(x) and exp(-x), so the second derivative is 0"),
)
MARKED = replace(
    KEPT,
    name="sinh_non_differentiable",
    summary="`sinh(x)`, returned intermediates marked non-differentiable: no second derivative",
    build=lambda: sinh_non_differentiable,
    expectations=_lost(
        "exp(x) and exp(-x) are marked non-differentiable, which separates them from x: the second derivative is lost"
    ),
)

"""Convolution and normalisation fused in one Function, without `once_differentiable`: second derivatives are wrong.

y = conv(x, w), out = (y - m) / s with m = mean y and s = sqrt(var y) + eps per channel. Backward recomputes y
and reuses m and s from ctx; autograd treats them as constants. First derivatives are right. Second derivatives miss
every path through m and s, without an error. Source: "Fusing convolution and batch norm using a custom function",
whose remedy is the decorator `torch.autograd.function.once_differentiable`: it raises an error for a second
derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- its usual name

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

EPS = 1e-3
PLANE = (0, 2, 3)  # all axes except the channels


class FusedConvBN(torch.autograd.Function):
    """Convolution and norm that save only x and w; backward computes the convolution again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return the normalised convolution; keep its mean and deviation on ctx."""
        y = F.conv2d(x, weight)
        ctx.save_for_backward(x, weight)
        ctx.mean, ctx.root = y.mean(PLANE, keepdim=True), y.var(PLANE, keepdim=True).sqrt()
        normed: Tensor = (y - ctx.mean) / (ctx.root + EPS)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight; their own derivatives are wrong."""
        x, weight = ctx.saved_tensors
        centred = F.conv2d(x, weight) - ctx.mean
        scale, freedom = ctx.root + EPS, grad.numel() / grad.size(1) - 1
        through_scale = centred * (grad * centred).sum(PLANE, keepdim=True) / (scale.square() * freedom * ctx.root)
        grad_y = (grad - grad.mean(PLANE, keepdim=True)) / scale - through_scale
        grad_weight = F.conv2d(x.transpose(0, 1), grad_y.transpose(0, 1)).transpose(0, 1)
        return F.conv_transpose2d(grad_y, weight), grad_weight


def fused_conv_bn_twice(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve and normalise; second derivatives are wrong, but raise no error.

    Args:
        x: (batch, channels, height, width), floating.
        weight: (filters, channels, rows, columns), dtype of `x`.

    Returns:
        (batch, filters, height - rows + 1, width - columns + 1), with mean 0 and deviation 1 per filter.

    >>> x = torch.arange(32.0).square().reshape(2, 1, 4, 4).requires_grad_()
    >>> out = fused_conv_bn_twice(x, torch.ones(1, 1, 3, 3))
    >>> (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    >>> slope.requires_grad  # with once_differentiable, differentiating this raises
    True
    """
    result: Tensor = FusedConvBN.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


def _reference(_model: object, x: Tensor, weight: Tensor) -> Tensor:
    """Multiply patches with filters, and use the statistics of `torch.std_mean`."""
    rows, columns = weight.shape[2:]
    patches = x.unfold(2, rows, 1).unfold(3, columns, 1)
    y = torch.einsum("bchwij,fcij->bfhw", patches, weight)
    deviation, mean = torch.std_mean(y, PLANE, keepdim=True)
    return (y - mean) / (deviation + EPS)


SPEC = Spec(
    name="fused_conv_bn_twice",
    summary="fused convolution and norm without once_differentiable: second derivatives wrong",
    source="Fusing convolution and batch norm using a custom function",
    formula="y = conv(x, w); out = (y - mean y) / (sqrt(var y) + eps)",
    shapes="(b, c, h, w), (f, c, i, j) → (b, f, h-i+1, w-j+1)",
    build=lambda: fused_conv_bn_twice,
    cases=(
        Case(
            name="typical",
            inputs=lambda g: (torch.randn(2, 1, 4, 4, generator=g), torch.randn(2, 1, 3, 3, generator=g)),
        ),
    ),
    dtypes="follows",
    twice_differentiable=True,
    reference=_reference,
    expectations=(
        Expect(
            outcome="INVALID",
            match="^gradgradcheck in float64: Jacobian mismatch",
            reason="autograd treats mean and deviation on ctx as constants, so second derivatives silently miss them",
            link="https://docs.pytorch.org/tutorials/intermediate/custom_function_conv_bn_tutorial.html",
        ),
    ),
)

"""A layer whose gradient is not its derivative: y = clamp(x, 0, limit), with a leak only in backward.

Source: an article on automatic mixed precision, "custom gradient module". A unit beyond either bound has the
derivative zero, so gradient descent cannot bring it back. Here its gradient is multiplied by `leak` instead. This is
the derivative of leak·x + (1 − leak)·clamp(x, 0, limit), but forward is still the clamp. The Function needs no
`custom_fwd`: none of its operations is on an autocast list, so both directions keep the dtype of the input.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo.arguments import want_floating, want_numbers, want_sizes
from zoo.case import Case
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import EXPORT_DROPS_BACKWARD
from zoo.spec import Spec


class Clip(torch.autograd.Function):
    """clamp(x, 0, limit), with gradient 1 within the bounds and `leak` outside; it saves one byte per element."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: float, leak: float) -> Tensor:
        """Return clamp(x, 0, limit)."""
        want_floating("Clip", "x", x)
        want_numbers("Clip", limit=limit, leak=leak)
        return torch.clamp(x, 0.0, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:  # noqa: ARG004
        """Save leak, and the mask of the elements within the bounds."""
        x, limit, leak = inputs
        ctx.save_for_backward((x >= 0) & (x <= limit))
        ctx.leak = leak

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return grad within the bounds, and leak times grad outside."""
        inside: Tensor = ctx.saved_tensors[0]
        return torch.where(inside, grad, ctx.leak * grad), None, None


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _clip(x: Tensor, limit: float, leak: float) -> Tensor:
    y: Tensor = Clip.apply(x, limit, leak)  # type: ignore[no-untyped-call]
    return y


class ClippedReLU(nn.Module):
    """Clamp to [0, limit]; units beyond the bounds still learn.

    Args:
        limit: upper bound, positive.
        leak: the part of the gradient that passes outside the bounds, in [0, 1]. 0 gives the derivative of the
            clamp, 1 gives a straight-through estimator.

    Raises:
        TypeError: `limit` or `leak` is no number.
        ValueError: one of them is outside its range.

    >>> x = torch.tensor([-1.0, 0.5, 9.0], requires_grad=True)
    >>> y = ClippedReLU(limit=6.0)(x)
    >>> y.tolist()
    [0.0, 0.5, 6.0]
    >>> torch.autograd.grad(y, x, torch.tensor([10.0, 10.0, 10.0]))[0].tolist()
    [1.0, 10.0, 1.0]
    """

    def __init__(self, limit: float = 6.0, leak: float = 0.1) -> None:
        super().__init__()
        want_numbers("ClippedReLU", limit=limit, leak=leak)
        if not limit > 0:
            raise ValueError(f"ClippedReLU: limit must be positive, got {limit}")
        if not 0 <= leak <= 1:
            raise ValueError(f"ClippedReLU: leak must lie in [0, 1], got {leak}")
        self.limit = float(limit)
        self.leak = float(leak)

    def forward(self, x: Tensor) -> Tensor:
        """Clamp x of any shape and floating dtype; the result has the same shape and dtype.

        Raises:
            TypeError: `x` is no tensor, or does not hold floating-point numbers.
        """
        want_floating("ClippedReLU", "x", x)
        y: Tensor = _clip(x, self.limit, self.leak)
        return y


def clipped_layer(in_features: int = 16, out_features: int = 8, limit: float = 6.0, leak: float = 0.1) -> nn.Sequential:
    """Build a linear layer and `ClippedReLU`; together they map (*, in_features), floating, to (*, out_features).

    Args:
        in_features: trailing size of the input.
        out_features: trailing size of the result.
        limit: upper bound of the result.
        leak: as for `ClippedReLU`.

    Raises:
        TypeError: a size is no integer, or `limit` or `leak` is no number.
        ValueError: a size is below 1, or `limit` or `leak` is outside its range.
        RuntimeError: on call, if the trailing size of the input is not `in_features` (torch names both).

    >>> clipped_layer(in_features=3, out_features=2)(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """
    want_sizes("clipped_layer", in_features=in_features, out_features=out_features)
    want_numbers("clipped_layer", limit=limit, leak=leak)
    return nn.Sequential(nn.Linear(in_features, out_features), ClippedReLU(limit, leak))


def _linear(model: nn.Sequential, x: Tensor) -> Tensor:
    linear = model[0]
    assert isinstance(linear, nn.Linear)
    return torch.einsum("...i,oi->...o", x, linear.weight) + linear.bias


def _reference(model: nn.Sequential, x: Tensor) -> Tensor:
    """Compute the median of 0, the linear layer's result and the limit."""
    y, clip = _linear(model, x), model[1]
    assert isinstance(clip, ClippedReLU)
    return torch.stack((y, torch.zeros_like(y), torch.full_like(y, clip.limit))).sort(0).values[1]


def _leaky(model: nn.Sequential, x: Tensor) -> Tensor:
    """Compute the function whose ordinary derivative is the declared gradient."""
    y, clip = _linear(model, x), model[1]
    assert isinstance(clip, ClippedReLU)
    return clip.leak * y + (1 - clip.leak) * y.clamp(0, clip.limit)


def _rows(count: int, generator: torch.Generator, scale: float = 1.0) -> tuple[Tensor]:
    return (scale * torch.randn(count, 16, generator=generator),)


SPEC = Spec(
    name="clipped_relu",
    summary="a linear layer clamped to [0, limit], whose gradient leaks beyond the bounds",
    source="articles on automatic mixed precision, custom gradient module",
    formula="y = clamp(x Wᵀ + b, 0, limit); its gradient is that of leak·z + (1 − leak)·clamp(z, 0, limit)",
    shapes="(..., in_features) → (..., out_features)",
    build=partial(clipped_layer, limit=0.5),
    cases=(
        Case(name="typical", inputs=partial(_rows, 24), independent_samples=True),
        Case(name="one-row", inputs=partial(_rows, 1), independent_samples=True),
        Case(name="empty", inputs=partial(_rows, 0)),
        Case(name="saturated", inputs=partial(_rows, 12, scale=64.0), independent_samples=True),
        Case(
            name="non-contiguous",
            inputs=lambda g: (torch.randn(16, 24, generator=g).t()[::2],),
            independent_samples=True,
        ),
    ),
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    surrogate_gradient=_leaky,
    expectations=(EXPORT_DROPS_BACKWARD,),
    family=Family(sizes={"rows": (1, 17)}, inputs=_rows),
    scale=Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=2**9,
        working_on_cuda=2**13,
        build=lambda n: clipped_layer(n, n, limit=0.5),
        inputs=lambda n, g: (torch.randn(64, n, generator=g),),
    ),
)

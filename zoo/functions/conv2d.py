"""out = x ⋆ weight, a Function whose gradients are convolutions too.

Source: "Fusing convolution and batch norm using a custom function". The gradient of x is a transposed convolution:
every output pixel adds its gradient, times the weight, to the pixels it was computed from. The gradient of the
weight correlates input and gradient, which is the same convolution with batch and channels exchanged. The Function
can be differentiated once: its backward is a Function whose own backward raises an error. `once_differentiable`
raises one too, but not always. If the cotangent requires no gradient, the gradient under `create_graph=True` is a
constant; and a nested `torch.func.grad` returns zeros.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from zoo.arguments import want_floating, want_tensors
from zoo.case import Case
from zoo.custom_ops import map_by_sample, run_in_autocast
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED
from zoo.spec import Spec


def _check(caller: str, x: Tensor, weight: Tensor) -> None:
    want_floating(caller, "x", x)
    want_floating(caller, "weight", weight)
    if x.device != weight.device:
        raise ValueError(f"{caller}: weight must be on the device of x, {x.device}, got {weight.device}")
    if x.dim() != 4:  # noqa: PLR2004
        raise ValueError(f"{caller}: x must have shape (batch, channels, height, width), got {list(x.shape)}")
    if weight.dim() != 4 or weight.numel() == 0 or weight.size(1) != x.size(1):  # noqa: PLR2004
        raise ValueError(
            f"{caller}: weight must have shape (filters, {x.size(1)}, rows, columns), got {list(weight.shape)}"
        )
    if weight.size(2) > x.size(2) or weight.size(3) > x.size(3):
        raise ValueError(
            f"{caller}: weight must have a kernel of at most {x.size(2)} x {x.size(3)}, the image of x, "
            f"got {weight.size(2)} x {weight.size(3)}"
        )


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"conv2d: weight must have the dtype of x, {x.dtype}, outside autocast, got {weight.dtype}")
    return functional.conv2d(x, weight)


def _gradients(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight in forward's precision, whatever the autocast state of backward is."""
    with torch.autocast(grad.device.type, enabled=False):
        x, weight = x.to(grad.dtype), weight.to(grad.dtype)
        of_x = functional.conv_transpose2d(grad, weight)
        if x.size(0) == 0:  # below, the batch becomes the channels, and a convolution needs at least one
            return of_x, torch.zeros_like(weight)
        of_weight = functional.conv2d(x.transpose(0, 1), grad.transpose(0, 1)).transpose(0, 1)
        return of_x, of_weight.contiguous()


class Conv2dBackward(torch.autograd.Function):
    """The gradients of x and weight; its own backward raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight for the gradient `grad` of the output."""
        want_tensors("Conv2dBackward", grad=grad, x=x, weight=weight)
        return _gradients(grad, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> None:  # noqa: ARG004
        """Raise RuntimeError: there is no second derivative."""
        raise RuntimeError("conv2d: can be differentiated once only, got a second derivative")


class Conv2d(torch.autograd.Function):
    """Convolution, with `Conv2dBackward` as its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution of x with weight."""
        want_floating("Conv2d", "x", x)
        want_floating("Conv2d", "weight", weight)
        return _convolution(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save x and weight."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight."""
        x, weight = ctx.saved_tensors
        gradients: tuple[Tensor, Tensor] = Conv2dBackward.apply(grad, x, weight)  # type: ignore[no-untyped-call]
        return gradients


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Two-dimensional convolution without bias or padding, with stride 1.

    Args:
        x: (batch, channels, height, width), floating.
        weight: (filters, channels, rows, columns), floating, on the device of `x`. Without autocast it must have
            the dtype of `x`.

    Returns:
        (batch, filters, height - rows + 1, width - columns + 1), in the autocast dtype; without autocast, in the
        dtype of `x`. The function supports `vmap` and `torch.func.grad`.

    Raises:
        TypeError: an argument is no tensor, a dtype is not floating, or the two dtypes differ without autocast.
        ValueError: a rank, the number of channels, the size of the kernel or the device does not fit.
        RuntimeError: in backward, if a second derivative is requested.

    >>> conv2d(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 2, 2))
    tensor([[[[8., 8.],
              [8., 8.]]]])
    """
    _check("conv2d", x, weight)
    result: Tensor = Conv2d.apply(x, weight)  # type: ignore[no-untyped-call]
    return result


_backward_operator = torch.library.custom_op("torch_conformance::conv2d_backward", _gradients, mutates_args=())
_backward_operator.register_fake(_gradients)
_operator = torch.library.custom_op("torch_conformance::conv2d", _convolution, mutates_args=())
_operator.register_fake(_convolution)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = torch.ops.torch_conformance.conv2d_backward(grad, *ctx.saved_tensors)
    return gradients


_operator.register_autograd(_backward, setup_context=Conv2d.setup_context)
map_by_sample(_operator)
run_in_autocast("conv2d")


def conv2d_op(x: Tensor, weight: Tensor) -> Tensor:
    """`conv2d` as an operator of torch.library, which torch.jit can also save; contract of `conv2d`.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    >>> conv2d_op(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 2, 2)).shape
    torch.Size([1, 1, 2, 2])
    """
    _check("conv2d_op", x, weight)
    result: Tensor = torch.ops.torch_conformance.conv2d(x, weight)
    return result


def _reference(_model: object, x: Tensor, weight: Tensor) -> Tensor:
    """Multiply every window with every filter and sum."""
    windows = x.unfold(2, weight.size(2), 1).unfold(3, weight.size(3), 1)
    return torch.einsum("bchwij,fcij->bfhw", windows, weight)


def _draw(x: tuple[int, ...], weight: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(x, generator=generator), torch.randn(weight, generator=generator)


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, weight = _draw((4, 8, 8, 3), (3, 3, 3, 5), generator)
    return x.permute(0, 3, 1, 2)[:, :, ::2], weight.permute(3, 0, 2, 1)


CASES = (
    Case(name="typical", inputs=partial(_draw, (4, 3, 8, 8), (5, 3, 3, 3))),
    Case(name="pointwise", inputs=partial(_draw, (4, 3, 5, 5), (2, 3, 1, 1))),
    Case(name="one-window", inputs=partial(_draw, (4, 3, 4, 4), (2, 3, 4, 4))),
    Case(name="rectangles", inputs=partial(_draw, (2, 2, 4, 7), (3, 2, 3, 2))),
    Case(name="one-image", inputs=partial(_draw, (1, 1, 4, 4), (1, 1, 2, 2))),
    Case(name="empty", inputs=partial(_draw, (0, 3, 8, 8), (5, 3, 3, 3))),
    Case(name="non-contiguous", inputs=_strided),
)

ERROR_INPUTS = (
    *(
        ErrorInput(name=name, inputs=partial(_draw, x, weight), error=ValueError, match=match)
        for name, x, weight, match in (
            ("no-batch", (3, 8, 8), (5, 3, 3, 3), r"x must have shape \(batch"),
            ("channels-differ", (4, 3, 8, 8), (5, 2, 3, 3), r"weight must have shape \(filters, 3"),
            ("kernel-too-large", (4, 3, 8, 8), (5, 3, 9, 3), "kernel of at most 8 x 8"),
        )
    ),
    ErrorInput(
        name="integers",
        inputs=lambda g: tuple(t.long() for t in _draw((4, 3, 8, 8), (5, 3, 3, 3), g)),
        error=TypeError,
        match="x must have a floating dtype",
    ),
    ErrorInput(
        name="devices-differ",
        inputs=lambda g: (torch.randn(4, 3, 8, 8, generator=g), torch.empty(5, 3, 3, 3, device="meta")),
        error=ValueError,
        match="weight must be on the device of x",
    ),
)


def _scale(model: Callable[[Tensor, Tensor], Tensor]) -> Scale:
    return Scale(
        size_name="batch",
        sizes=(2, 8, 32),
        working=32,
        working_on_cuda=2**12,
        build=lambda _: model,
        inputs=lambda n, g: _draw((n, 3, 32, 32), (16, 3, 3, 3), g),
    )


SPEC = Spec(
    name="conv2d",
    summary="convolution with a handwritten backward, differentiable once",
    source="Fusing convolution and batch norm, a backward formula for convolution",
    formula="out[b, f, i, j] = Σ x[b, c, i + k, j + l] weight[f, c, k, l] over c, k, l",
    shapes="(batch, channels, h, w), (filters, channels, k, l) → (batch, filters, h - k + 1, w - l + 1)",
    build=lambda: conv2d,
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED),
    family=Family(
        sizes={"batch": (1, 4), "channels": (1, 4), "filters": (1, 4), "side": (1, 6), "k": (1, 3)},
        inputs=lambda b, c, f, side, k, g: _draw((b, c, side + k - 1, side + k - 1), (f, c, k, k), g),
    ),
    scale=_scale(conv2d),
)
OP = replace(
    SPEC,
    name="conv2d_op",
    summary="`conv2d` as a custom operator",
    build=lambda: conv2d_op,
    twin="conv2d",
    expectations=(),
    scale=_scale(conv2d_op),
)

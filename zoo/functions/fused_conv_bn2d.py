"""out = (y - mean) / (√var + ε) with y = x ⋆ weight: convolution and batch norm in one Function.

Source: "Fusing convolution and batch norm using a custom function". Two separate layers save y for backward. This
Function saves only x and weight, which exist anyway, and its backward convolves again: 100 032 bytes instead of
560 960 for 8 images of 3 x 32 x 32 and 16 filters of 3 x 3. torch.compile merges the two convolutions of the
Function and saves y after all; it cannot do so with the operator, which is opaque to it. Mathematics and derivatives
are those of `conv2d` and `batch_norm2d`. The Function can be differentiated once: its backward is a Function whose
own backward raises an error. (With `once_differentiable`, a nested `torch.func.grad` returns zeros.)
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from zoo.arguments import want_floating, want_floats, want_tensors
from zoo.case import Case
from zoo.custom_ops import map_by_sample, run_in_autocast
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED
from zoo.spec import Spec

SPACE = (0, 2, 3)


def _check(caller: str, x: Tensor, weight: Tensor, eps: float) -> None:
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
    height, width = x.size(2) - weight.size(2) + 1, x.size(3) - weight.size(3) + 1
    if height < 1 or width < 1:
        raise ValueError(
            f"{caller}: weight must have a kernel of at most {x.size(2)} x {x.size(3)}, the image of x, "
            f"got {weight.size(2)} x {weight.size(3)}"
        )
    if x.size(0) * height * width < 2:  # noqa: PLR2004
        raise ValueError(f"{caller}: x must give at least 2 values per filter, got shape {list(x.shape)}")
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_floats(caller, eps=eps)
    if not eps > 0:
        raise ValueError(f"{caller}: eps must be positive, got {eps}")


def _statistics(y: Tensor) -> tuple[Tensor, Tensor]:
    """Centred values and standard deviation, in float32 at least."""
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    var, mean = torch.var_mean(wide, dim=SPACE, keepdim=True)
    return wide - mean, var.sqrt()


def _fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"fused_conv_bn2d: weight must have the dtype of x, {x.dtype}, outside autocast, got {weight.dtype}"
        )
    y = functional.conv2d(x, weight)
    centred, std = _statistics(y)
    normed = centred / (std + eps)
    return normed if normed.dtype == y.dtype else normed.to(y.dtype)  # pytorch#180642: an idle cast loses the gradient


def _norm_gradient(grad: Tensor, y: Tensor, eps: float) -> Tensor:
    centred, std = _statistics(y)
    grad, scale, count = grad.to(centred.dtype), std + eps, y.size(0) * y.size(2) * y.size(3)
    direct = (grad - grad.mean(SPACE, keepdim=True)) / scale
    slope = (grad * centred).sum(SPACE, keepdim=True) / (scale * scale * (count - 1))
    return (direct - torch.where(std > 0, centred / std, 0) * slope).to(y.dtype)


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight in forward's precision, whatever the autocast state of backward is."""
    with torch.autocast(grad.device.type, enabled=False):
        x, weight = x.to(grad.dtype), weight.to(grad.dtype)
        of_y = _norm_gradient(grad, functional.conv2d(x, weight), eps)
        of_weight = functional.conv2d(x.transpose(0, 1), of_y.transpose(0, 1)).transpose(0, 1)
        return functional.conv_transpose2d(of_y, weight), of_weight.contiguous()


class FusedConvBN2dBackward(torch.autograd.Function):
    """The gradients of x and weight; its own backward raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and weight for the gradient `grad` of the output."""
        want_tensors("FusedConvBN2dBackward", grad=grad, x=x, weight=weight)
        want_floats("FusedConvBN2dBackward", eps=eps)
        return _gradients(grad, x, weight, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> None:  # noqa: ARG004
        """Raise RuntimeError: there is no second derivative."""
        raise RuntimeError("fused_conv_bn2d: can be differentiated once only, got a second derivative")


class FusedConvBN2d(torch.autograd.Function):
    """Convolution and norm, with `FusedConvBN2dBackward` as the gradient; it saves x and weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the normalised convolution of x with weight."""
        want_floating("FusedConvBN2d", "x", x)
        want_floating("FusedConvBN2d", "weight", weight)
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_floats("FusedConvBN2d", eps=eps)
        return _fused(x, weight, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        """Save x, weight and eps."""
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of x and weight."""
        of_x, of_weight = FusedConvBN2dBackward.apply(grad, *ctx.saved_tensors, ctx.eps)  # type: ignore[no-untyped-call]
        return of_x, of_weight, None


def fused_conv_bn2d(x: Tensor, weight: Tensor, eps: float = 1e-3) -> Tensor:
    """Convolve without bias or padding, with stride 1, and normalise each filter's output over the batch.

    Args:
        x: (batch, channels, height, width), floating.
        weight: (filters, channels, rows, columns), floating, on the device of `x`. Without autocast it must have
            the dtype of `x`.
        eps: positive float that is added to the standard deviation.

    Returns:
        (batch, filters, height - rows + 1, width - columns + 1), in the autocast dtype; without autocast, in the
        dtype of `x`. The norm is computed in float32 at least. The function supports `vmap` and
        `torch.func.grad`.

    Raises:
        TypeError: `x` or `weight` is no tensor, a dtype is not floating, the two dtypes differ without autocast, or
            `eps` is no float.
        ValueError: a rank, the number of channels, the size of the kernel or the device does not fit, a filter
            gives fewer than two values, or `eps` is not positive.
        RuntimeError: in backward, if a second derivative is requested.

    >>> fused_conv_bn2d(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3), torch.ones(1, 1, 1, 1), eps=1.0)
    tensor([[[[-0.5000,  0.0000,  0.5000]]]])
    """
    _check("fused_conv_bn2d", x, weight, eps)
    result: Tensor = FusedConvBN2d.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return result


_backward_operator = torch.library.custom_op("torch_conformance::fused_conv_bn2d_backward", _gradients, mutates_args=())
_backward_operator.register_fake(_gradients)
_operator = torch.library.custom_op("torch_conformance::fused_conv_bn2d", _fused, mutates_args=())
_operator.register_fake(_fused)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    of_x, of_weight = torch.ops.torch_conformance.fused_conv_bn2d_backward(grad, *ctx.saved_tensors, ctx.eps)
    return of_x, of_weight, None


_operator.register_autograd(_backward, setup_context=FusedConvBN2d.setup_context)
map_by_sample(_operator)
run_in_autocast("fused_conv_bn2d")


def fused_conv_bn2d_op(x: Tensor, weight: Tensor, eps: float = 1e-3) -> Tensor:
    """`fused_conv_bn2d` as an operator of torch.library, which torch.jit can save; compiled, it still saves memory.

    The contract is that of `fused_conv_bn2d`, but `torch.func.grad` raises an error, as for all custom operators
    (pytorch#170834). After saving and loading, a script needs `eps` as an argument: torch.jit does not save
    defaults.

    >>> fused_conv_bn2d_op(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)).shape
    torch.Size([2, 4, 6, 6])
    """
    _check("fused_conv_bn2d_op", x, weight, eps)
    result: Tensor = torch.ops.torch_conformance.fused_conv_bn2d(x, weight, eps)
    return result


def _reference(_model: object, x: Tensor, weight: Tensor) -> Tensor:
    """Convolve window by window; compute each deviation from the length of the vector of centred values."""
    windows = x.unfold(2, weight.size(2), 1).unfold(3, weight.size(3), 1)
    y = torch.einsum("bchwij,fcij->fbhw", windows, weight)
    rows = y.flatten(1)
    centred = rows - rows.sum(1, keepdim=True) / rows.size(1)
    std = centred.norm(dim=1, keepdim=True) / (rows.size(1) - 1) ** 0.5
    result: Tensor = (centred / (std + 1e-3)).reshape(y.shape).movedim(0, 1)
    return result


def _draw(x: tuple[int, ...], weight: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(x, generator=generator), torch.randn(weight, generator=generator)


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, weight = _draw((4, 8, 8, 3), (3, 3, 3, 5), generator)
    return x.permute(0, 3, 1, 2)[:, :, ::2], weight.permute(3, 0, 2, 1)


CASES = (
    Case(name="typical", inputs=partial(_draw, (4, 3, 8, 8), (5, 3, 3, 3))),
    Case(name="pointwise", inputs=partial(_draw, (4, 3, 5, 5), (2, 3, 1, 1))),
    Case(name="one-image", inputs=partial(_draw, (1, 2, 6, 7), (3, 2, 3, 2))),
    Case(name="non-contiguous", inputs=_strided),
)


def _scale(model: Callable[..., Tensor]) -> Scale:
    return Scale(
        size_name="batch",
        sizes=(2, 8, 32),
        working=4,
        working_on_cuda=2**12,
        build=lambda _: model,
        inputs=lambda n, g: _draw((n, 3, 32, 32), (16, 3, 3, 3), g),
    )


ERROR_INPUTS = (
    *(
        ErrorInput(name=name, inputs=partial(_draw, x, weight), error=ValueError, match=match)
        for name, x, weight, match in (
            ("no-batch", (3, 8, 8), (5, 3, 3, 3), r"x must have shape \(batch"),
            ("channels-differ", (4, 3, 8, 8), (5, 2, 3, 3), r"weight must have shape \(filters, 3"),
            ("kernel-too-large", (4, 3, 8, 8), (5, 3, 9, 3), "kernel of at most 8 x 8"),
            ("one-value", (1, 3, 3, 3), (5, 3, 3, 3), "2 values per filter"),
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
    ErrorInput(
        name="eps-zero",
        inputs=lambda g: (*_draw((4, 3, 8, 8), (5, 3, 3, 3), g), 0.0),
        error=ValueError,
        match="eps must be positive",
    ),
)

SPEC = Spec(
    name="fused_conv_bn2d",
    summary="convolution and batch norm that save only x and weight, differentiable once",
    source="Fusing convolution and batch norm using a custom function",
    formula="out = (y - mean(y)) / (√var(y) + ε), y = x ⋆ weight",
    shapes="(batch, channels, h, w), (filters, channels, k, l) → (batch, filters, h - k + 1, w - l + 1)",
    build=lambda: fused_conv_bn2d,
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, STRIDES_NOT_SORTED),
    family=Family(
        sizes={"batch": (1, 4), "channels": (1, 4), "filters": (1, 4), "side": (2, 6), "k": (1, 3)},
        inputs=lambda b, c, f, side, k, g: _draw((b, c, side + k - 1, side + k - 1), (f, c, k, k), g),
    ),
    scale=_scale(fused_conv_bn2d),
)
OP = replace(
    SPEC,
    name="fused_conv_bn2d_op",
    summary="`fused_conv_bn2d` as a custom operator",
    build=lambda: fused_conv_bn2d_op,
    twin="fused_conv_bn2d",
    expectations=(),
    scale=_scale(fused_conv_bn2d_op),
)

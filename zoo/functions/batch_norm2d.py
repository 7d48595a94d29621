"""out = (x - mean) / (√var + ε), mean and unbiased variance over batch and space, as a Function.

Source: "Fusing convolution and batch norm using a custom function". Here ε is outside the root and the variance
divides by n - 1; `F.batch_norm` has ε inside the root and divides by n. At ε = 1e-3 the two differ by up to 1e-2
on unit data, by design. With c = x - mean, s = √var and d = s + ε the gradient is
(g - mean(g)) / d - (c / s) Σ(g c) / (d² (n - 1)). In a constant channel c and s are 0, and the second term is set
to 0: this is its limit and the true derivative. The norm can be differentiated once; a second derivative raises.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating, want_floats, want_tensors
from zoo.case import Case
from zoo.error_input import INTEGERS, ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import EXPORT_DROPS_BACKWARD, FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED
from zoo.spec import Spec

SPACE = (0, 2, 3)


def _check(caller: str, x: Tensor, eps: float) -> None:
    want_floating(caller, "x", x)
    if x.dim() != 4:  # noqa: PLR2004
        raise ValueError(f"{caller}: x must have shape (batch, channels, height, width), got {list(x.shape)}")
    if x.size(0) * x.size(2) * x.size(3) < 2:  # noqa: PLR2004
        raise ValueError(f"{caller}: x must hold at least 2 values per channel, got shape {list(x.shape)}")
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_floats(caller, eps=eps)
    if not eps > 0:
        raise ValueError(f"{caller}: eps must be positive, got {eps}")


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Centred values and standard deviation, in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, dim=SPACE, keepdim=True)
    return wide - mean, var.sqrt()


def _norm(x: Tensor, eps: float) -> Tensor:
    centred, std = _statistics(x)
    normed = centred / (std + eps)
    return normed if normed.dtype == x.dtype else normed.to(x.dtype)  # pytorch#180642: an idle cast loses the gradient


def _gradient(grad: Tensor, x: Tensor, eps: float) -> Tensor:
    centred, std = _statistics(x)
    grad, scale, count = grad.to(centred.dtype), std + eps, x.size(0) * x.size(2) * x.size(3)
    direct = (grad - grad.mean(SPACE, keepdim=True)) / scale
    slope = (grad * centred).sum(SPACE, keepdim=True) / (scale * scale * (count - 1))
    return (direct - torch.where(std > 0, centred / std, 0) * slope).to(x.dtype)


class BatchNorm2dBackward(torch.autograd.Function):
    """The gradient of x; its own backward raises an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, eps: float) -> Tensor:
        """Return the gradient of x for the gradient `grad` of the output."""
        want_tensors("BatchNorm2dBackward", grad=grad, x=x)
        want_floats("BatchNorm2dBackward", eps=eps)
        return _gradient(grad, x, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> None:  # noqa: ARG004
        """Raise RuntimeError: there is no second derivative."""
        raise RuntimeError("batch_norm2d: can be differentiated once only, got a second derivative")


class BatchNorm2d(torch.autograd.Function):
    """The norm, with `BatchNorm2dBackward` as its gradient; it saves x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, eps: float) -> Tensor:
        """Return the normalised x."""
        want_floating("BatchNorm2d", "x", x)
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_floats("BatchNorm2d", eps=eps)
        return _norm(x, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        """Save x and eps."""
        x, ctx.eps = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x."""
        gradient: Tensor = BatchNorm2dBackward.apply(grad, ctx.saved_tensors[0], ctx.eps)  # type: ignore[no-untyped-call]
        return gradient, None


def batch_norm2d(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Normalise each channel by its own mean and standard deviation in this batch.

    Args:
        x: (batch, channels, height, width), floating, at least two values per channel.
        eps: positive float that is added to the standard deviation.

    Returns:
        A tensor with the shape and dtype of `x`, computed in float32 at least. The function supports `vmap` and
        `torch.func.grad`.

    Raises:
        TypeError: `x` is no tensor or does not hold floating-point numbers, or `eps` is no float.
        ValueError: the rank of `x` is not 4, a channel holds fewer than two values (so it has no unbiased
            variance), or `eps` is not positive.
        RuntimeError: in backward, if a second derivative is requested.

    >>> batch_norm2d(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3), eps=1.0)
    tensor([[[[-0.5000,  0.0000,  0.5000]]]])
    """
    _check("batch_norm2d", x, eps)
    result: Tensor = BatchNorm2d.apply(x, eps)  # type: ignore[no-untyped-call]
    return result


_backward_operator = torch.library.custom_op("torch_conformance::batch_norm2d_backward", _gradient, mutates_args=())
_backward_operator.register_fake(_gradient)
_operator = torch.library.custom_op("torch_conformance::batch_norm2d", _norm, mutates_args=())
_operator.register_fake(_norm)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    gradient: Tensor = torch.ops.torch_conformance.batch_norm2d_backward(grad, ctx.saved_tensors[0], ctx.eps)
    return gradient, None


_operator.register_autograd(_backward, setup_context=BatchNorm2d.setup_context)
if hasattr(torch.library, "register_vmap"):  # older torch has a loop built in and warns about it

    @_operator.register_vmap
    def _(info: Any, in_dims: tuple[int, None], x: Tensor, eps: float) -> tuple[Tensor, int]:  # noqa: ARG001
        channels = x.movedim(in_dims[0], 1)
        return _operator(channels.flatten(1, 2), eps).unflatten(1, channels.shape[1:3]), 1


def batch_norm2d_op(x: Tensor, eps: float = 1e-3) -> Tensor:
    """`batch_norm2d` as an operator of torch.library, which torch.jit can also save; contract of `batch_norm2d`.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834). After
    saving and loading, a script needs `eps` as an argument: torch.jit does not save defaults.

    >>> batch_norm2d_op(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3), eps=1.0)
    tensor([[[[-0.5000,  0.0000,  0.5000]]]])
    """
    _check("batch_norm2d_op", x, eps)
    result: Tensor = torch.ops.torch_conformance.batch_norm2d(x, eps)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    """Compute each standard deviation from the length of the channel's vector of centred values."""
    rows = x.movedim(1, 0).flatten(1)
    centred = rows - rows.sum(1, keepdim=True) / rows.size(1)
    std = centred.norm(dim=1, keepdim=True) / (rows.size(1) - 1) ** 0.5
    result: Tensor = (centred / (std + 1e-3)).reshape(x.movedim(1, 0).shape).movedim(0, 1)
    return result


def _constant_channel(generator: torch.Generator) -> tuple[Tensor]:
    x = torch.randn(4, 3, 4, 4, generator=generator)
    x[:, 1] = 0.5
    return (x,)


CASES = (
    Case(name="typical", inputs=lambda g: (1 + 2 * torch.randn(4, 3, 6, 6, generator=g),)),
    Case(name="one-image", inputs=lambda g: (torch.randn(1, 3, 4, 4, generator=g),)),
    Case(name="offset", inputs=lambda g: (32 + 4 * torch.randn(4, 3, 6, 6, generator=g),)),
    Case(name="constant-channel", inputs=_constant_channel),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(4, 6, 12, 3, generator=g).transpose(1, 3)[:, :, ::2],)),
)

ERROR_INPUTS = (
    INTEGERS,
    ErrorInput(name="no-batch", inputs=lambda _: (torch.ones(3, 6, 6),), error=ValueError, match="x must have shape"),
    ErrorInput(
        name="one-value", inputs=lambda _: (torch.ones(1, 3, 1, 1),), error=ValueError, match="2 values per channel"
    ),
    ErrorInput(
        name="eps-zero", inputs=lambda _: (torch.ones(4, 3, 6, 6), 0.0), error=ValueError, match="eps must be positive"
    ),
)


def _scale(model: Callable[[Tensor], Tensor]) -> Scale:
    return Scale(
        size_name="batch",
        sizes=(2, 8, 32),
        working=8,
        working_on_cuda=2**12,
        build=lambda _: model,
        inputs=lambda n, g: (torch.randn(n, 16, 32, 32, generator=g),),
    )


SPEC = Spec(
    name="batch_norm2d",
    alias="batch_norm2d_eps_outside",
    summary="batch norm with ε outside the root, differentiable once",
    source="Fusing convolution and batch norm, a backward formula for batch norm",
    formula="out = (x - mean) / (√var + ε), over batch and space, var unbiased",
    shapes="(batch, channels, h, w) → (batch, channels, h, w)",
    build=lambda: batch_norm2d,
    cases=CASES,
    error_inputs=ERROR_INPUTS,
    dtypes="input",
    one_graph=True,
    float32_accurate=("output", "gradient of x"),
    reference=_reference,
    expectations=(
        FUNCTION_APPLY_REFUSED,
        NESTED_FUNCTION_NOT_TRACED,
        replace(EXPORT_DROPS_BACKWARD, gate="class"),
    ),
    family=Family(
        sizes={"images": (1, 5), "channels": (1, 4), "h": (2, 7), "w": (2, 7)},
        inputs=lambda n, c, h, w, g: (1 + 2 * torch.randn(n, c, h, w, generator=g),),
    ),
    scale=_scale(batch_norm2d),
)
OP = replace(
    SPEC,
    name="batch_norm2d_op",
    alias="batch_norm2d_eps_outside_op",
    summary="`batch_norm2d` as a custom operator",
    build=lambda: batch_norm2d_op,
    twin="batch_norm2d",
    expectations=(),
    scale=_scale(batch_norm2d_op),
)

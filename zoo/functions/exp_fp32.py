"""y = exp(x) in float32 whatever autocast says: `custom_fwd` with `cast_inputs=torch.float32`.

Source: an article on automatic mixed precision. Under autocast the input is cast up and forward runs with
autocast off; the output stays float32, for autocast casts nothing back. Without autocast the decorator does
nothing, and the output has the dtype of the input. The decorators name one device type: one class each.
"""

from typing import Any

import torch
from torch import Tensor

from zoo.spec import Case, Spec

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


def _function(device_type: str) -> type[torch.autograd.Function]:
    class ExpFp32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = torch.exp(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            y: Tensor = ctx.saved_tensors[0]
            return y * grad

    return ExpFp32


FUNCTIONS = {device_type: _function(device_type) for device_type in DEVICE_TYPES}


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(x: Tensor) -> Tensor:
    result: Tensor = FUNCTIONS[x.device.type].apply(x)
    return result


def exp_fp32(x: Tensor) -> Tensor:
    """exp(x), elementwise, in float32 under autocast.

    Args:
        x: any shape, floating.

    Returns:
        The shape of `x`, float32 under autocast (float64 stays), else the dtype of `x`. The gradient of `x`
        has the dtype of `x`.

    Raises:
        TypeError: `x` does not hold floating-point numbers.
    """
    if not x.is_floating_point():
        raise TypeError(f"exp_fp32: x must have a floating dtype, got {x.dtype}")
    result: Tensor = _apply(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    half = torch.exp(x / 2)
    return half * half


def _wide(generator: torch.Generator) -> tuple[Tensor]:
    """From 6e-6 to beyond float16's largest number."""
    return (torch.linspace(-12, 12, 24).reshape(4, 6) + torch.rand(4, 6, generator=generator),)


SPEC = Spec(
    name="exp_fp32",
    summary="exp in float32 under autocast, by custom_fwd(cast_inputs=float32)",
    source="articles on automatic mixed precision, cast_inputs",
    build=lambda: exp_fp32,
    cases=(
        Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
        Case(name="extreme", inputs=_wide),
        Case(name="single", inputs=lambda g: (torch.rand(1, 1, generator=g),)),
        Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
    ),
    dtypes="float32",
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
)

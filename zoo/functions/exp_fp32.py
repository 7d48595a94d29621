"""y = exp(x) in float32 under any autocast dtype: `custom_fwd` with `cast_inputs=torch.float32`.

Source: an article on `custom_bwd`, which promises gradients in high precision; the articles do not have
`cast_inputs`, which keeps that promise: docs/where-the-sources-are-wrong/custom-functions.md. Under autocast the
decorator casts the input up and runs forward with autocast off. The output stays float32, because autocast casts
nothing back. Without autocast the decorator does nothing, and the output has the dtype of the input. A decorator is
for one device type, so there is one class per device type. The cast needs a forward with a `ctx`, which `vmap` and
`torch.func` do not support; the operator casts in its own kernel.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo import internals
from zoo.arguments import want_floating
from zoo.case import Case
from zoo.custom_ops import map_elementwise, run_in_autocast
from zoo.error_input import INTEGERS
from zoo.expect import Expect
from zoo.family import MATRICES
from zoo.scale import elementwise
from zoo.shared_expectations import BEYOND_FLOAT16
from zoo.spec import Spec

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
    """Return exp(x), elementwise, computed in float32 under autocast.

    Args:
        x: any shape, floating.

    Returns:
        A tensor with the shape of `x`: float32 under autocast (float64 stays float64), else the dtype of `x`. The
        gradient of `x` has the dtype of `x`.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.
        RuntimeError: it is called under `vmap` or a transform of `torch.func`.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     exp_fp32(torch.tensor([0.0, 1.0], dtype=torch.bfloat16))
    tensor([1.0000, 2.7183])
    """
    want_floating("exp_fp32", "x", x)
    result: Tensor = _apply(x)
    return result


@torch.library.custom_op("torch_conformance::exp_fp32", mutates_args=())
def _operator(x: Tensor) -> Tensor:
    return torch.exp(x)


@_operator.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    y: Tensor = ctx.saved_tensors[0]
    return y * grad


_operator.register_autograd(_backward, setup_context=_save)
map_elementwise(_operator)
run_in_autocast("exp_fp32", torch.float32)


def exp_fp32_op(x: Tensor) -> Tensor:
    """`exp_fp32` as an operator of torch.library, which torch.jit can also save; contract of `exp_fp32`.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     exp_fp32_op(torch.tensor([0.0, 1.0], dtype=torch.bfloat16))
    tensor([1.0000, 2.7183])
    """
    want_floating("exp_fp32_op", "x", x)
    result: Tensor = torch.ops.torch_conformance.exp_fp32(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    half = torch.exp(x / 2)
    return half * half


def _wide(generator: torch.Generator) -> tuple[Tensor]:
    """Draw inputs whose exponentials reach from 6e-6 to beyond float16's largest number."""
    return (torch.linspace(-12, 12, 24).reshape(4, 6) + torch.rand(4, 6, generator=generator),)


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(name="extreme", inputs=_wide),
    Case(name="single", inputs=lambda g: (torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)
_WITHOUT_NUMPY = tuple(
    Expect(
        outcome="ERROR",
        modes=modes,
        precisions=("amp_fp16", "amp_bf16"),
        error=error,
        match="name 'HAS_NUMPY' is not defined",
        reason="custom_fwd of torch 2.4 casts inputs only where NumPy is installed",
    )
    for modes, error in (
        (("eager",), "NameError"),
        (("scripted",), "RuntimeError"),
        (("compiled", "graphed"), "InternalTorchDynamoError"),
    )
)

_LARGE = replace(BEYOND_FLOAT16, tensor="second gradient of x", case="extreme")
SPEC = Spec(
    name="exp_fp32",
    summary="`exp` in float32 under autocast, by custom_fwd(cast_inputs=float32)",
    source="articles on automatic mixed precision, custom_bwd",
    formula="y = exp(x)",
    shapes="(...) → (...)",
    build=lambda: exp_fp32,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="float32",
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    family=MATRICES,
    scale=elementwise(exp_fp32),
    reference=_reference,
    expectations=(_LARGE, *(() if hasattr(internals, "checks_without_numpy") else _WITHOUT_NUMPY)),
)
OP = replace(
    SPEC,
    name="exp_fp32_op",
    summary="`exp_fp32` as a custom operator with an autocast kernel",
    build=lambda: exp_fp32_op,
    scale=elementwise(exp_fp32_op),
    twin="exp_fp32",
    expectations=(_LARGE,),
)

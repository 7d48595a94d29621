"""y = max(x, 0), a Function for use under autocast that saves a mask of one byte per element.

Source: an article on `custom_bwd`, whose example is a ReLU under autocast. Backward only needs a mask, not x, and its
product with the gradient is a new tensor. `custom_fwd` without `cast_inputs` only records the state of autocast on
`ctx`, so it can decorate `setup_context`, and forward needs no `ctx`; `vmap` and `torch.func.grad` require this form.
`custom_bwd` restores that state wherever backward runs.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.custom_ops import map_elementwise
from zoo.error_input import INTEGERS
from zoo.family import Family
from zoo.scale import elementwise
from zoo.spec import Spec

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


def _relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def _save_mask(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(output > 0)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    positive: Tensor = ctx.saved_tensors[0]
    return grad * positive


def _function(device_type: str) -> type[torch.autograd.Function]:
    class ReluAmp(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(_relu)
        setup_context = staticmethod(torch.amp.custom_fwd(_save_mask, device_type=device_type))
        backward = staticmethod(torch.amp.custom_bwd(_backward, device_type=device_type))

    return ReluAmp


FUNCTIONS = {device_type: _function(device_type) for device_type in DEVICE_TYPES}


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _apply(x: Tensor) -> Tensor:
    result: Tensor = FUNCTIONS[x.device.type].apply(x)
    return result


def relu_amp(x: Tensor) -> Tensor:
    """Return max(x, 0), elementwise, with or without autocast; the derivative at 0 is 0.

    Args:
        x: any shape, floating.

    Returns:
        A tensor with the shape and dtype of `x`. The function supports `vmap` and `torch.func.grad`.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> relu_amp(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    want_floating("relu_amp", "x", x)
    result: Tensor = _apply(x)
    return result


_operator = torch.library.custom_op("torch_conformance::relu_amp", _relu, mutates_args=())
_operator.register_fake(_relu)
_operator.register_autograd(_backward, setup_context=_save_mask)
map_elementwise(_operator)


def relu_amp_op(x: Tensor) -> Tensor:
    """`relu_amp` as an operator of torch.library, which torch.jit can also save; contract of `relu_amp`.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    >>> relu_amp_op(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    want_floating("relu_amp_op", "x", x)
    result: Tensor = torch.ops.torch_conformance.relu_amp(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    return (x + x.abs()) / 2


def _away_from_zero(*shape: int, generator: torch.Generator) -> Tensor:
    sign = torch.randint(2, shape, generator=generator) * 2.0 - 1
    return sign * (0.125 + torch.rand(shape, generator=generator))


CASES = (
    Case(name="typical", inputs=lambda g: (_away_from_zero(4, 6, generator=g),)),
    Case(
        name="extreme",
        inputs=lambda g: (_away_from_zero(4, 6, generator=g) * torch.logspace(-8, 14, 6, base=2),),
    ),
    Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (_away_from_zero(6, 8, generator=g).t()[::2],)),
)

SPEC = Spec(
    name="relu_amp",
    summary="ReLU by custom_fwd and custom_bwd, saving a mask",
    source="articles on automatic mixed precision, a custom ReLU",
    formula="y = max(x, 0)",
    shapes="(...) → (...)",
    build=lambda: relu_amp,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=Family(
        sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: (_away_from_zero(rows, n, generator=g),)
    ),
    scale=elementwise(relu_amp),
)
OP = replace(
    SPEC,
    name="relu_amp_op",
    summary="`relu_amp` as a custom operator",
    build=lambda: relu_amp_op,
    twin="relu_amp",
    scale=elementwise(relu_amp_op),
)

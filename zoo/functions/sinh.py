"""y = (exp(x) - exp(-x)) / 2, a Function whose backward reuses the two intermediates.

Source: "Double backward with custom functions". Backward needs p = exp(x) and n = exp(-x). Saving them is not
enough: they are neither inputs nor outputs, so the second derivative would miss their dependence on x. So forward
returns them as well, and backward adds their gradient terms: g (p + n) / 2 + gp p - gn n.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.custom_ops import map_elementwise
from zoo.error_input import INTEGERS
from zoo.family import MATRICES
from zoo.scale import elementwise
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED, SECOND_LOST
from zoo.spec import Spec


def _exp(x: Tensor) -> Tensor:
    y = torch.exp(x)
    return y if y.dtype == x.dtype else y.to(x.dtype)  # autocast on CUDA widens y; see also pytorch#180642


class Sinh(torch.autograd.Function):
    """(sinh(x), exp(x), exp(-x)), with a handwritten gradient of all three."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sinh(x), exp(x) and exp(-x) in the dtype of x."""
        want_floating("Sinh", "x", x)
        rising, falling = _exp(x), _exp(-x)
        return (rising - falling) / 2, rising, falling

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor],  # noqa: ARG004
        output: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Save exp(x) and exp(-x)."""
        ctx.save_for_backward(output[1], output[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_rising: Tensor, grad_falling: Tensor) -> Tensor:
        """Return the gradient of x: the sum of the terms of all three outputs."""
        rising: Tensor = ctx.saved_tensors[0]
        falling: Tensor = ctx.saved_tensors[1]
        return grad * (rising + falling) / 2 + grad_rising * rising - grad_falling * falling


def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of each element; x is floating, of any shape, and the result has its dtype.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> sinh(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 1.1752])
    """
    want_floating("sinh", "x", x)
    result, _, _ = Sinh.apply(x)  # type: ignore[no-untyped-call]
    return result  # type: ignore[no-any-return]


@torch.library.custom_op("torch_conformance::sinh", mutates_args=())
def _sinh(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rising, falling = _exp(x), _exp(-x)
    return (rising - falling) / 2, rising, falling


@_sinh.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)


_sinh.register_autograd(Sinh.backward, setup_context=Sinh.setup_context)
map_elementwise(_sinh)


def sinh_op(x: Tensor) -> Tensor:
    """`sinh` as an operator of torch.library, which torch.jit can also save; same contract.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> sinh_op(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 1.1752])
    """
    want_floating("sinh_op", "x", x)
    outputs: tuple[Tensor, Tensor, Tensor] = torch.ops.torch_conformance.sinh(x)
    return outputs[0]


def _reference(_model: object, x: Tensor) -> Tensor:
    return torch.sinh(x)


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(
        name="extreme",
        inputs=lambda g: (torch.linspace(-10, 9, 24).reshape(4, 6) + torch.rand(4, 6, generator=g),),
    ),
    Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)


SPEC = Spec(
    name="sinh",
    summary="`sinh(x)` that returns its intermediates",
    source="Double backward with custom functions, saving intermediate results",
    formula="y = (exp(x) - exp(-x)) / 2",
    shapes="(...) → (...)",
    build=lambda: sinh,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=replace(elementwise(sinh), working=2**18),
    expectations=(FUNCTION_APPLY_REFUSED,),
)

OP = replace(
    SPEC,
    name="sinh_op",
    summary="`sinh(x)` as a custom operator",
    build=lambda: sinh_op,
    scale=replace(elementwise(sinh_op), working=2**18),
    twin="sinh",
    expectations=(replace(SECOND_LOST, precisions=(), torch="<2.6"),),
)

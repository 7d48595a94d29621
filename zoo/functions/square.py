"""y = x², a Function that saves its input: the gradient is 2 x g, whose own gradients are 2 g and 2 x.

Source: "Double backward with custom functions". Autograd records what backward computes from tensors saved with
`save_for_backward`, so the second derivative needs no further code.
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
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED
from zoo.spec import Spec


class Square(torch.autograd.Function):
    """x², with a handwritten gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return x²."""
        want_floating("Square", "x", x)
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 2 x grad."""
        x: Tensor = ctx.saved_tensors[0]
        return 2 * x * grad


def square(x: Tensor) -> Tensor:
    """Return the square of each element; x is floating, of any shape, and the result has its dtype.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> square(torch.tensor([-3.0, 0.5]))
    tensor([9.0000, 0.2500])
    """
    want_floating("square", "x", x)
    result: Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
    return result


@torch.library.custom_op("torch_conformance::square", mutates_args=())
def _square(x: Tensor) -> Tensor:
    return x * x


@_square.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_square.register_autograd(Square.backward, setup_context=Square.setup_context)
map_elementwise(_square)


def square_op(x: Tensor) -> Tensor:
    """`square` as an operator of torch.library, which torch.jit can also save; same contract.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> square_op(torch.tensor([-3.0, 0.5]))
    tensor([9.0000, 0.2500])
    """
    want_floating("square_op", "x", x)
    result: Tensor = torch.ops.torch_conformance.square(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    return x.abs() ** 2


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(name="extreme", inputs=lambda g: (torch.randn(4, 6, generator=g) * torch.logspace(-8, 8, 6, base=2),)),
    Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)


SPEC = Spec(
    name="square",
    summary="`x²`, saving the input",
    source="Double backward with custom functions, saving the inputs",
    formula="y = x²",
    shapes="(...) → (...)",
    build=lambda: square,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=elementwise(square),
    expectations=(FUNCTION_APPLY_REFUSED,),
)

OP = replace(
    SPEC,
    name="square_op",
    summary="`x²` as a custom operator",
    build=lambda: square_op,
    expectations=(),
    scale=elementwise(square_op),
    twin="square",
)

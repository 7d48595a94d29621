"""y = x³, whose backward is a Function of its own: CubeBackward(g, x) = 3 x² g.

Source: "Double backward with custom functions". A backward gets a Function of its own if autograd cannot
differentiate it, or only at a cost. The gradients of 3 x² g are 3 x² for g and 6 x g for x, in the order of the
arguments.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.custom_ops import map_by_sample, map_elementwise
from zoo.error_input import INTEGERS
from zoo.expect import Expect
from zoo.family import MATRICES
from zoo.scale import elementwise
from zoo.shared_expectations import FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED
from zoo.spec import Spec


class CubeBackward(torch.autograd.Function):
    """3 x² grad, with handwritten gradients of `grad` and `x`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor) -> Tensor:
        """Return 3 x² grad."""
        want_floating("CubeBackward", "grad", grad)
        want_floating("CubeBackward", "x", x)
        return 3 * x * x * grad

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save grad and x."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of grad and x, in that order."""
        grad, x = ctx.saved_tensors
        return 3 * x * x * outer, 6 * x * grad * outer


class Cube(torch.autograd.Function):
    """x³, with `CubeBackward` as its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return x³."""
        want_floating("Cube", "x", x)
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return 3 x² grad."""
        result: Tensor = CubeBackward.apply(grad, ctx.saved_tensors[0])  # type: ignore[no-untyped-call]
        return result


def cube(x: Tensor) -> Tensor:
    """Return the cube of each element; x is floating, of any shape, and the result has its dtype.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> cube(torch.tensor([-3.0, 0.5]))
    tensor([-27.0000,   0.1250])
    """
    want_floating("cube", "x", x)
    result: Tensor = Cube.apply(x)  # type: ignore[no-untyped-call]
    return result


@torch.library.custom_op("torch_conformance::cube_backward", mutates_args=())
def _cube_backward(grad: Tensor, x: Tensor) -> Tensor:
    return 3 * x * x * grad


@_cube_backward.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(x)


_cube_backward.register_autograd(CubeBackward.backward, setup_context=CubeBackward.setup_context)


@torch.library.custom_op("torch_conformance::cube", mutates_args=())
def _cube(x: Tensor) -> Tensor:
    return x * x * x


@_cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    result: Tensor = torch.ops.torch_conformance.cube_backward(grad, ctx.saved_tensors[0])
    return result


_cube.register_autograd(_backward, setup_context=Cube.setup_context)
map_elementwise(_cube)
map_by_sample(_cube_backward)


def cube_op(x: Tensor) -> Tensor:
    """`cube` as an operator of torch.library, which torch.jit can also save; same contract.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> cube_op(torch.tensor([-3.0, 0.5]))
    tensor([-27.0000,   0.1250])
    """
    want_floating("cube_op", "x", x)
    result: Tensor = torch.ops.torch_conformance.cube(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    return x.sign() * x.abs() ** 3


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(name="extreme", inputs=lambda g: (torch.randn(4, 6, generator=g) * torch.logspace(-4, 5, 6, base=2),)),
    Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)

DTYPE_NOT_ASKED = Expect(
    outcome="VOID",
    modes=("compiled", "graphed"),
    torch=">=2.6,<2.7",
    match="is_floating_point in strict mode",
    reason="torch.compile traces no backward that asks whether a tensor is floating, and leaves it to eager",
    link="https://github.com/pytorch/pytorch/issues/132609",
)
SPEC = Spec(
    name="cube",
    summary="`x³`, with a Function for its backward",
    source="Double backward with custom functions, backward with a Function of its own",
    formula="y = x³",
    shapes="(...) → (...)",
    build=lambda: cube,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=elementwise(cube),
    expectations=(FUNCTION_APPLY_REFUSED, NESTED_FUNCTION_NOT_TRACED, DTYPE_NOT_ASKED),
)

OP = replace(
    SPEC,
    name="cube_op",
    summary="`x³` as a custom operator",
    build=lambda: cube_op,
    expectations=(),
    scale=elementwise(cube_op),
    twin="cube",
)

"""y = exp(x), a Function that saves its output: the gradient is y g, whose own gradients are y and y g.

Source: "Double backward with custom functions". The saved output is a node of the graph, not a copy, so the
second derivative reaches x through it.
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


class Exp(torch.autograd.Function):
    """exp(x), with a handwritten gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return exp(x) in the dtype of x."""
        want_floating("Exp", "x", x)
        y = torch.exp(x)
        return y if y.dtype == x.dtype else y.to(x.dtype)  # autocast on CUDA widens y; see also pytorch#180642

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Save the output y."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return y grad."""
        y: Tensor = ctx.saved_tensors[0]
        return y * grad


def exp(x: Tensor) -> Tensor:
    """Return the exponential of each element; x is floating, of any shape, and the result has its dtype.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> exp(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """
    want_floating("exp", "x", x)
    result: Tensor = Exp.apply(x)  # type: ignore[no-untyped-call]
    return result


@torch.library.custom_op("torch_conformance::exp", mutates_args=())
def _exp(x: Tensor) -> Tensor:
    return torch.exp(x).to(x.dtype)


@_exp.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_exp.register_autograd(Exp.backward, setup_context=Exp.setup_context)
map_elementwise(_exp)


def exp_op(x: Tensor) -> Tensor:
    """`exp` as an operator of torch.library, which torch.jit can also save; same contract.

    It supports `vmap`; `torch.func.grad` raises an error, as for all custom operators (pytorch#170834).

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> exp_op(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """
    want_floating("exp_op", "x", x)
    result: Tensor = torch.ops.torch_conformance.exp(x)
    return result


def _reference(_model: object, x: Tensor) -> Tensor:
    half = torch.exp(x / 2)
    return half * half


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
    Case(
        name="extreme",
        inputs=lambda g: (torch.linspace(-12, 10, 24).reshape(4, 6) + torch.rand(4, 6, generator=g),),
    ),
    Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
)


SPEC = Spec(
    name="exp",
    summary="`exp(x)`, saving the output",
    source="Double backward with custom functions, saving the outputs",
    formula="y = exp(x)",
    shapes="(...) → (...)",
    build=lambda: exp,
    cases=CASES,
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=elementwise(exp),
    expectations=(FUNCTION_APPLY_REFUSED,),
)

OP = replace(
    SPEC,
    name="exp_op",
    summary="`exp(x)` as a custom operator",
    build=lambda: exp_op,
    scale=elementwise(exp_op),
    twin="exp",
    expectations=(),
)

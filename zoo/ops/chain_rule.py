"""y = −x², as g(u(x)) with u = x·x and g = −u, and its derivatives by the chain rule: −2x, and −2 everywhere.

Source: "Effective PyTorch", where `torch.autograd.grad(g(u(x)), x)` is −2 at x = 1. A power binds tighter than a minus:
`-x ** 2` is −x², and (−x)² is another function, whose gradient has the other sign. Both say x·x here, because CUDA's
autocast widens `x ** 2` to float32 and leaves a product in the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.error_input import INTEGERS
from zoo.family import MATRICES
from zoo.scale import elementwise
from zoo.spec import Spec


def negative_square(x: Tensor) -> Tensor:
    """Return −x² of each element; x is floating, of any shape, and the result has its dtype, also under autocast.

    Raises:
        TypeError: `x` is no tensor, or does not hold floating-point numbers.

    >>> x = torch.tensor(1.0, requires_grad=True)
    >>> (gradient,) = torch.autograd.grad(negative_square(x), x, create_graph=True)
    >>> gradient.item(), torch.autograd.grad(gradient, x)[0].item()
    (-2.0, -2.0)
    """
    want_floating("negative_square", "x", x)
    return -(x * x)


def _reference(_model: object, x: Tensor) -> Tensor:
    return -(x.abs() ** 2)


SPEC = Spec(
    name="negative_square",
    summary="minus the square, whose gradient is the chain rule's first example",
    source="Effective PyTorch, PyTorch basics",
    formula="y = −x²",
    shapes="(...) → (...)",
    build=lambda: negative_square,
    cases=(
        Case(name="typical", inputs=lambda g: (torch.randn(4, 6, generator=g),)),
        Case(name="single", inputs=lambda g: (1 + torch.rand(1, 1, generator=g),)),
        Case(name="empty", inputs=lambda _: (torch.empty(0, 6),)),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(6, 8, generator=g).t()[::2],)),
    ),
    error_inputs=(INTEGERS,),
    dtypes="input",
    twice_differentiable=True,
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x", "second gradient of x"),
    reference=_reference,
    family=MATRICES,
    scale=elementwise(negative_square),
)

"""A straight line, y = a·x + b: once on two scalar Parameters, once on `nn.Linear(1, 1)`.

Source: "Effective PyTorch", where it is the second model that is fitted, after a parabola. `Affine` and `Line` give
the same numbers for the same slope and offset. Under autocast `Line` returns the autocast dtype, because a linear
layer is on the low-precision list. `Affine` keeps the dtype of its input, because products and sums are on no list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from zoo.arguments import want_floating
from zoo.case import Case
from zoo.family import Family
from zoo.scale import Scale
from zoo.shared_expectations import SECOND_LOST, SECOND_LOST_EARLY
from zoo.spec import Spec


def _check(name: str, x: Tensor, device: torch.device) -> None:
    want_floating(name, "x", x)
    if x.dim() != 1:
        raise ValueError(f"{name}: x must have shape (n,), got {list(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name}: x must be on {device}, where the parameters are, got {x.device}")


class Affine(nn.Module):
    """y = a·x + b with two scalar Parameters, which are drawn from a normal distribution.

    >>> line = Affine()
    >>> line.load_state_dict({"a": torch.tensor(5.0), "b": torch.tensor(3.0)})
    <All keys matched successfully>
    >>> line(torch.tensor([0.0, 1.0, 2.0])).tolist()
    [3.0, 8.0, 13.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(()))
        self.b = nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (n,), any floating dtype, to (n,) of the same dtype.

        Raises:
            TypeError: `x` is no tensor, or does not hold floating-point numbers.
            ValueError: `x` is not a vector, or not on the device of the parameters.
        """
        _check("Affine", x, self.a.device)
        return self.a * x + self.b


class Line(nn.Module):
    """y = a·x + b on `nn.Linear(1, 1)`; every number of x is a row with one feature.

    >>> line = Line()
    >>> line.load_state_dict({"linear.weight": torch.tensor([[5.0]]), "linear.bias": torch.tensor([3.0])})
    <All keys matched successfully>
    >>> line(torch.tensor([0.0, 1.0, 2.0])).tolist()
    [3.0, 8.0, 13.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (n,), floating, to (n,) in its dtype, or in the autocast dtype.

        Raises:
            TypeError: `x` is no tensor, or does not hold floating-point numbers.
            ValueError: `x` is not a vector, or not on the device of the parameters.
            RuntimeError: `x` and the parameters differ in dtype without autocast (torch names both).
        """
        _check("Line", x, self.linear.weight.device)
        y: Tensor = self.linear(x.unsqueeze(1)).squeeze(1)
        return y


def _affine_reference(model: Affine, x: Tensor) -> Tensor:
    return torch.stack((x, torch.ones_like(x)), 1) @ torch.stack((model.a, model.b))


def _line_reference(model: Line, x: Tensor) -> Tensor:
    return x * model.linear.weight.flatten() + model.linear.bias


CASES = (
    Case(name="typical", inputs=lambda g: (torch.randn(24, generator=g),)),
    Case(name="one-number", inputs=lambda g: (torch.randn(1, generator=g),)),
    Case(name="empty", inputs=lambda _: (torch.empty(0),)),
    Case(name="extreme", inputs=lambda g: (torch.randn(12, generator=g) * torch.logspace(-8, 8, 12, base=2),)),
    Case(name="non-contiguous", inputs=lambda g: (torch.randn(12, 3, generator=g)[:, 1],)),
)


def _scale(build: Callable[[], nn.Module]) -> Scale:
    return Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17),
        working=2**19,
        working_on_cuda=2**26,
        build=lambda _: build(),
        inputs=lambda n, g: (torch.randn(n, generator=g),),
    )


AFFINE = Spec(
    name="affine",
    summary="a straight line on two scalar Parameters",
    source="Effective PyTorch, PyTorch basics",
    formula="y = a·x + b",
    shapes="(n,) → (n,)",
    build=Affine,
    cases=CASES,
    dtypes="input",
    twice_differentiable=True,
    one_graph=True,
    float32_accurate=(
        "output",
        "gradient of x",
        "gradient of a",
        "gradient of b",
        "second gradient of x",
        "second gradient of a",
    ),
    reference=_affine_reference,
    family=Family(sizes={"n": (1, 25)}, inputs=lambda n, g: (torch.randn(n, generator=g),)),
    scale=_scale(Affine),
)

LINE = replace(
    AFFINE,
    name="line",
    summary="a straight line on nn.Linear(1, 1)",
    build=Line,
    dtypes="follows",
    forward_mode=False,
    float32_accurate=(),
    reference=_line_reference,
    scale=_scale(Line),
    expectations=(
        SECOND_LOST_EARLY,
        replace(SECOND_LOST, torch="<2.5"),
    ),
)

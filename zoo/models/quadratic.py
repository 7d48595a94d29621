"""A parabola as a linear model on features: y = (x², x, 1) · w.

Source: "Effective PyTorch", where three weights are fitted to samples of 5x² + 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.arguments import want_tensors
from zoo.case import Case
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


class Quadratic(nn.Module):
    """y = w₀x² + w₁x + w₂; the weights, of shape (3, 1), are drawn from a normal distribution.

    >>> parabola = Quadratic()
    >>> parabola.load_state_dict({"w": torch.tensor([[5.0], [0.0], [3.0]])})
    <All keys matched successfully>
    >>> parabola(torch.tensor([0.0, 1.0, -2.0])).tolist()
    [3.0, 8.0, 23.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (n,), floating, to (n,) in its dtype, or in the autocast dtype.

        Under float16 autocast the features are float16: beyond ±255, x² is infinite.

        Raises:
            ValueError: `x` is not a vector, or not on the device of the weights.
            TypeError: `x` is not a tensor, or does not hold floating-point numbers.
            RuntimeError: `x` and the weights differ in dtype without autocast (torch names both).
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("Quadratic", x=x)
        if x.dim() != 1:
            raise ValueError(f"Quadratic: x must have shape (n,), got {list(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"Quadratic: x must have a floating dtype, got {x.dtype}")
        if x.device != self.w.device:
            raise ValueError(f"Quadratic: x must be on {self.w.device}, where the weights are, got {x.device}")
        features = torch.stack([x * x, x, torch.ones_like(x)], 1)
        y: Tensor = (features @ self.w).squeeze(1)
        return y


def _reference(model: Quadratic, x: Tensor) -> Tensor:
    """Use Horner's rule."""
    a, b, c = model.w.flatten()
    y: Tensor = (a * x + b) * x + c
    return y


SPEC = Spec(
    name="quadratic",
    summary="a parabola, linear in its three weights",
    source="Effective PyTorch, PyTorch basics",
    formula="y = (x², x, 1) · w",
    shapes="(n,) → (n,)",
    build=Quadratic,
    cases=(
        Case(name="typical", inputs=lambda g: (torch.randn(24, generator=g),)),
        Case(name="one-number", inputs=lambda g: (torch.randn(1, generator=g),)),
        Case(name="empty", inputs=lambda _: (torch.empty(0),)),
        Case(name="extreme", inputs=lambda g: (torch.randn(12, generator=g) * torch.logspace(-6, 5, 12, base=2),)),
        Case(name="non-contiguous", inputs=lambda g: (torch.randn(12, 3, generator=g)[:, 1],)),
    ),
    dtypes="follows",
    twice_differentiable=True,
    one_graph=True,
    reference=_reference,
    family=Family(sizes={"n": (1, 25)}, inputs=lambda n, g: (torch.randn(n, generator=g),)),
    scale=Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17),
        working=2**17,
        working_on_cuda=2**26,
        build=lambda _: Quadratic(),
        inputs=lambda n, g: (torch.randn(n, generator=g),),
    ),
)

"""A straight line fitted to points of y = 5x + 3 by gradient descent.

Source: "Effective PyTorch", which fits it after the parabola. Its noise, 0.3 times `torch.rand`, is never negative.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.amp import want_precision
from zoo.arguments import want_instances, want_integers, want_numbers, want_sizes
from zoo.case import Case
from zoo.models.line import Line
from zoo.spec import Spec
from zoo.training.step import Fit, fit, loss_curve, squared_error


def line_points(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw 100 points (x, y): x = 0, 0.01, …, 0.99, y = 5x + 3 + noise in [0, 0.3); both (100,), float32.

    Raises:
        TypeError: `generator` is no torch.Generator.

    >>> x, y = line_points(torch.Generator().manual_seed(0))
    >>> x[:2].tolist() == torch.tensor([0.0, 0.01]).tolist(), bool(((y >= 5 * x + 3) & (y < 5 * x + 3.3)).all())
    (True, True)
    """
    want_instances("line_points", torch.Generator, generator=generator)
    x = torch.arange(100) / 100
    return x, 5 * x + 3 + 0.3 * torch.rand(100, generator=generator)


def fit_line(model: nn.Module, *, steps: int = 10_000, lr: float = 0.01, precision: str = "fp32", seed: int = 0) -> Fit:
    """Fit `Affine` or `Line` as the source does: all of `line_points` in each step, 10000 steps at the rate 0.01.

    This finds the line of least squares to 1e-3: a near 5, and b near 3.15, as the noise has the mean 0.15. At the rate
    0.5, 300 steps do: the source's rate is far below what the curvature of this loss allows. The matrix runs 8 steps at
    the rate 0.1, see `SPEC`.

    Args:
        model: maps (n,) to (n,); it is trained in place.
        steps: number of steps of gradient descent.
        lr: learning rate.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        seed: seed of the noise.

    Raises:
        TypeError, ValueError: an argument has the wrong type, or a number is not positive.
        FloatingPointError: as in `fit`.

    >>> from zoo.models.line import Affine
    >>> fit_line(Affine(), steps=5).losses.shape
    torch.Size([5])
    """
    want_instances("fit_line", nn.Module, model=model)
    want_sizes("fit_line", steps=steps)
    want_numbers("fit_line", lr=lr)
    want_precision("fit_line", precision)
    want_integers("fit_line", seed=seed)
    device = next(model.parameters()).device
    x, y = (t.to(device) for t in line_points(torch.Generator().manual_seed(seed)))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return fit(model, squared_error, (x, y), optimizer, steps=steps, precision=precision)


def _points(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw 64 points with noise of 0.1, so that the loss does not end at zero and each seed is a new trial."""
    x = torch.rand(64, generator=generator)
    return x, 5 * x + 3 + 0.1 * torch.randn(64, generator=generator)


def _curve(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return loss_curve(call, squared_error, (x, y), optimizer, precision, steps=8)


def _recursion(model: Line, x: Tensor, y: Tensor) -> Tensor:
    """Compute the losses from a linear recursion in (a, b): the loss is a quadratic form of them."""
    points = torch.stack((x, torch.ones_like(x)), dim=1)
    moments, pull, rest = points.t() @ points / len(x), points.t() @ y / len(x), y @ y / len(x)
    theta = torch.cat((model.linear.weight.flatten(), model.linear.bias)).detach()
    losses = []
    for _ in range(8):
        losses.append(theta @ moments @ theta - 2 * theta @ pull + rest)
        theta = theta - 0.2 * (moments @ theta - pull)
    return torch.stack(losses)


SPEC = Spec(
    name="fit_line",
    summary="8 steps of gradient descent on `line`; the loss before each",
    formula="L = mean (a·x + b − y)², (a, b) ← (a, b) − ∇L/10",
    shapes="(n,), (n,) → (8,)",
    source="Effective PyTorch, PyTorch basics",
    build=Line,
    cases=(Case(name="typical", inputs=_points),),
    dtypes="float32",
    differentiable=False,
    reference=_recursion,
    fit=_curve,
)

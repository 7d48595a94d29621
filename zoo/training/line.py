"""A straight line fitted to y = 5x + 3 and noise by stochastic gradient descent.

Source: "Effective PyTorch", where it is the second model that is fitted. There, x is arange(100) / 100, the noise is
`torch.rand(100) * 0.3`, which moves the offset, and 10000 steps have the learning rate 0.01.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.models.line import Line
from zoo.spec import Spec
from zoo.training.step import Fit, fit, loss_curve, squared_error

RATE = 0.5


def noisy_line(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw points (x, y): x uniform in [0, 1), y = 5x + 3 plus normal noise of 0.1; both (count,), float32.

    >>> x, y = noisy_line(1000, torch.Generator().manual_seed(0))
    >>> round((y - 5 * x).mean().item(), 1)
    3.0
    """
    x = torch.rand(count, generator=generator)
    return x, 5 * x + 3 + 0.1 * torch.randn(count, generator=generator)


def fit_line(model: nn.Module, *, steps: int = 300, precision: str = "fp32", seed: int = 0) -> Fit:
    """Fit `Affine` or `Line` to 256 noisy points; a comes out near 5 and b near 3.

    Args:
        model: maps (n,) to (n,); it is trained in place.
        steps: number of steps of gradient descent, with learning rate 0.5.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        seed: seed of the points.

    Raises:
        ValueError: as in `train_step`.

    >>> from zoo.models.line import Affine
    >>> model = Affine()
    >>> _ = fit_line(model)
    >>> round(model.a.item(), 1), round(model.b.item(), 1)
    (5.0, 3.0)
    """
    device = next(model.parameters()).device
    x, y = (t.to(device) for t in noisy_line(256, torch.Generator().manual_seed(seed)))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return fit(model, squared_error, (x, y), optimizer, steps=steps, precision=precision)


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
    cases=(Case(name="typical", inputs=lambda g: noisy_line(64, g)),),
    dtypes="float32",
    differentiable=False,
    reference=_recursion,
    fit=_curve,
)

"""A parabola fitted to 5x² + 3 by Adam.

Source: "Effective PyTorch", where it is the first model that is fitted. There, x is drawn from [−10, 10) anew for
each of 1000 steps, with the learning rate 0.1; these steps do not find the offset.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.models.quadratic import Quadratic
from zoo.spec import Spec
from zoo.training.step import Fit, fit, loss_curve, squared_error


def parabola(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw points (x, y): x uniform in [−2, 2), y = 5x² + 3; both (count,), float32.

    >>> x, y = parabola(8, torch.Generator().manual_seed(0))
    >>> torch.equal(y, 5 * x * x + 3)
    True
    """
    x = 4 * torch.rand(count, generator=generator) - 2
    return x, 5 * x * x + 3


def fit_quadratic(model: nn.Module, *, steps: int = 1000, precision: str = "fp32", seed: int = 0) -> Fit:
    """Fit `Quadratic` to 256 points; its weights come out near (5, 0, 3).

    Args:
        model: maps (n,) to (n,); it is trained in place.
        steps: number of steps of Adam, with learning rate 0.05.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        seed: seed of the points.

    Raises:
        ValueError: as in `train_step`.

    >>> from zoo.models.quadratic import Quadratic
    >>> model = Quadratic()
    >>> _ = fit_quadratic(model)
    >>> [abs(round(w, 1)) for w in model.w.tolist()]
    [5.0, 0.0, 3.0]
    """
    device = next(model.parameters()).device
    x, y = (t.to(device) for t in parabola(256, torch.Generator().manual_seed(seed)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return fit(model, squared_error, (x, y), optimizer, steps=steps, precision=precision)


def _curve(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    return loss_curve(call, squared_error, (x, y), optimizer, precision, steps=8)


def _by_hand(model: Quadratic, x: Tensor, y: Tensor) -> Tensor:
    """Compute the losses with Adam written out, on the gradient of the quadratic form."""
    features = torch.stack((x * x, x, torch.ones_like(x)), dim=1)
    w = model.w.detach().clone()
    mean, square = torch.zeros_like(w), torch.zeros_like(w)
    losses = []
    for t in range(1, 9):
        error = features @ w - y
        losses.append(error @ error / len(x))
        gradient = 2 * error @ features / len(x)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        w = w - 0.5 * mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
    return torch.stack(losses)


SPEC = Spec(
    name="fit_quadratic",
    summary="8 steps of Adam on `quadratic`; the loss before each",
    formula="L = mean ((x², x, 1) · w − y)², w ← Adam(w, ∇L, 1/2)",
    shapes="(n,), (n,) → (8,)",
    source="Effective PyTorch, PyTorch basics",
    build=Quadratic,
    cases=(Case(name="typical", inputs=lambda g: parabola(64, g)),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_curve,
)

"""A parabola fitted to 5x² + 3 by Adam, on fresh points in each step.

Source: "Effective PyTorch", where it is the first model that is fitted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.amp import want_precision
from zoo.arguments import want_instances, want_integers, want_numbers, want_sizes
from zoo.case import Case
from zoo.models.quadratic import Quadratic
from zoo.spec import Spec
from zoo.training.epochs import train
from zoo.training.step import Fit, loss_curve, squared_error


def parabola(count: int, generator: torch.Generator, limit: float = 10.0) -> tuple[Tensor, Tensor]:
    """Draw points (x, y): x uniform in [−limit, limit), y = 5x² + 3; both (count,), float32.

    Raises:
        TypeError, ValueError: an argument has the wrong type, or `count` is below 1.

    >>> x, y = parabola(8, torch.Generator().manual_seed(0))
    >>> torch.equal(y, 5 * x * x + 3)
    True
    """
    want_sizes("parabola", count=count)
    want_instances("parabola", torch.Generator, generator=generator)
    want_numbers("parabola", limit=limit)
    x = 2 * limit * torch.rand(count, generator=generator) - limit
    return x, 5 * x * x + 3


def fit_quadratic(model: nn.Module, *, steps: int = 1000, precision: str = "fp32", seed: int = 0) -> Fit:
    """Fit `Quadratic` as the source does: 100 fresh points in [−10, 10) in each step, Adam with learning rate 0.1.

    After 1000 steps its weights are near (5, 0, 3), but the last one only to about 0.3: x² is up to 100, so the loss
    hardly feels the offset. 3000 steps find it to 1e-4. The source prints 3.45 after 1000. The matrix runs 8 steps on x
    in [−2, 2) at the rate 0.5, see `SPEC`: there each weight matters to the loss.

    Args:
        model: maps (n,) to (n,); it is trained in place.
        steps: number of steps of Adam.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        seed: seed of the points.

    Raises:
        TypeError, ValueError, FloatingPointError: as in `zoo.training.epochs.train`.

    >>> from zoo.models.quadratic import Quadratic
    >>> model = Quadratic()
    >>> _ = fit_quadratic(model)
    >>> [abs(round(w, 1)) for w in model.w.flatten()[:2].tolist()]
    [5.0, 0.0]
    """
    want_instances("fit_quadratic", nn.Module, model=model)
    want_sizes("fit_quadratic", steps=steps)
    want_precision("fit_quadratic", precision)
    want_integers("fit_quadratic", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    batches = (parabola(100, generator) for _ in range(steps))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return train(model, squared_error, batches, optimizer, epochs=1, precision=precision)


def _curve(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    return loss_curve(call, squared_error, (x, y), optimizer, precision, steps=8)


def _by_hand(model: Quadratic, x: Tensor, y: Tensor) -> Tensor:
    """Compute the losses with Adam written out, on the gradient of the quadratic form."""
    features = torch.stack((x * x, x, torch.ones_like(x)), dim=1)
    w = model.w.detach().clone().flatten()
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
    cases=(Case(name="typical", inputs=lambda g: parabola(64, g, limit=2.0)),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_curve,
)

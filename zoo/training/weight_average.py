"""An exponential moving average of the weights, which is what one evaluates and ships.

Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", SIAM J. Control Optim. 1992, for
averaging; PyTorch, `torch.optim.swa_utils`, for the average that forgets. The first update copies the weights. A step
that was skipped updates nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zoo.arguments import want_instances, want_numbers
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.step import backward_by_hand, squared_error, taught, train_step


def averaged(model: nn.Module, decay: float = 0.999) -> AveragedModel:
    """Copy a model; each `update_parameters(model)` moves the copy: average ← decay · average + (1 − decay) · weight.

    Buffers, such as running statistics, are copied and not averaged. Give the copy to `zoo.training.epochs.train` as
    `average`, or call its `update_parameters` after each step that was taken. Call the copy itself to evaluate.

    Args:
        model: the model that is trained.
        decay: the share of the old average, at least 0 and below 1.

    Raises:
        TypeError: `model` is not a module, or `decay` not a number.
        ValueError: `decay` is not in [0, 1).

    >>> model = nn.Linear(1, 1)
    >>> average = averaged(model, decay=0.75)
    >>> for weight in (1.0, 2.0):
    ...     _ = model.weight.data.fill_(weight)
    ...     average.update_parameters(model)
    >>> average.module.weight.item()
    1.25
    """
    want_instances("averaged", nn.Module, model=model)
    want_numbers("averaged", decay=decay)
    if not 0 <= decay < 1:
        raise ValueError(f"averaged: decay must be at least 0 and below 1, got {decay!r}")
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def _averaged_steps(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss before each of 12 steps, and at the end the loss of the averaged weights."""
    optimizer = SGD(model.parameters(), lr=0.4, momentum=0.5)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    average = averaged(model, decay=0.75)
    losses = []
    for _ in range(12):
        step = train_step(call, squared_error, (x, y), optimizer, precision, scaler)
        losses.append(step.loss)
        if not step.skipped:
            average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    last = train_step(call, squared_error, (x, y), optimizer, precision, scaler)  # its loss is that before the step
    return torch.stack([*losses, last.loss])


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses; the average is written as a sum over all steps, with its weights."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    losses, path = [], []
    for _ in range(12):
        loss, gradients = backward_by_hand(parameters, x, y)
        losses.append(loss)
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed.mul_(0.5).add_(gradient)
            parameter.sub_(0.4 * speed)
        path.append([p.clone() for p in parameters])
    shares = [0.75**11] + [0.25 * 0.75 ** (11 - number) for number in range(1, 12)]
    mean = [
        torch.stack([s * p for s, p in zip(shares, on_path, strict=True)]).sum(0) for on_path in zip(*path, strict=True)
    ]
    return torch.stack([*losses, backward_by_hand(mean, x, y)[0]])


SPEC = Spec(
    name="train_averaged",
    summary="12 steps of SGD on `mlp`; the loss before each, and that of the averaged weights",
    formula="v ← v/2 + ∇L, w ← w − 0.4 v, average ← 3/4 average + w/4",
    shapes="(batch, 64), (batch, 10) → (13,)",
    source="Polyak and Juditsky 1992; PyTorch, torch.optim.swa_utils",
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_averaged_steps,
)

"""Two training steps that are wrong in float16: one does not scale the loss, one clips gradients that are scaled.

Source: the articles on automatic mixed precision. Both are right in float32 and in bfloat16, which has the range of
float32. Neither raises an error or a warning.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD

from zoo.expect import Expect
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training import step
from zoo.training.step import AUTOCAST, loss_curve, squared_error, train_step

LINK = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"


def _tiny_loss(output: Tensor, target: Tensor) -> Tensor:
    return 2.0**-20 * squared_error(output, target)


def _without_scaler(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Train on a small loss whose gradients are below float16's range; the learning rate is large to match."""
    optimizer = SGD(model.parameters(), lr=0.2 * 2.0**20)
    unscaled = GradScaler(x.device.type, enabled=False)
    done = [train_step(call, _tiny_loss, (x, y), optimizer, precision, unscaled) for _ in range(12)]
    return torch.stack([one.loss for one in done])


def _clipped_while_scaled(
    call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor
) -> Tensor:
    """Clip gradients that are still 1024 times too large, so every step is up to 1024 times too short."""
    optimizer = SGD(model.parameters(), lr=0.2)
    if AUTOCAST[precision] != torch.float16:
        return loss_curve(call, squared_error, (x, y), optimizer, precision, steps=12, clip=1.0)
    scaler = GradScaler(x.device.type, init_scale=2.0**10)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = squared_error(call(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


def _spec(name: str, summary: str, fit: Callable[..., Tensor], reason: str) -> Spec:
    return Spec(
        name=name,
        summary=summary,
        formula="w ← w − ∇L/5",
        shapes="(batch, 64), (batch, 10) → (12,)",
        source="articles on automatic mixed precision",
        build=mlp,
        cases=step.SPEC.cases,
        dtypes="float32",
        differentiable=False,
        fit=fit,
        expectations=(
            Expect(outcome="FAIL", precisions=("amp_fp16",), tensor="output", gate="norm", reason=reason, link=LINK),
        ),
    )


SPECS = (
    _spec(
        "training_without_scaler",
        "`float16` training without a loss scaler, on a small loss",
        _without_scaler,
        "gradients below float16's smallest number vanish, so the network does not change",
    ),
    _spec(
        "training_clips_scaled_gradients",
        "`float16` training that clips before it unscales",
        _clipped_while_scaled,
        "the norm of scaled gradients always exceeds the clip, so every step is too short",
    ),
)

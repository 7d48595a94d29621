"""A correct training step under autocast, and a training loop on one batch.

Source: the articles on automatic mixed precision; PyTorch, "Automatic Mixed Precision examples". Autocast covers only
forward and loss. Backward runs outside autocast, on a scaled loss. The gradients are unscaled before they are clipped.
A step is skipped if its gradients are not finite. One scaler is used for the whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer

from zoo.amp import AUTOCAST, Health, autocast, backward, device_of, unscale_and_step, want_batch, want_step
from zoo.arguments import want_callables, want_floating, want_instances, want_sizes, want_tensors
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec

__all__ = [
    "AUTOCAST",
    "Fit",
    "Step",
    "backward_by_hand",
    "fit",
    "loss_curve",
    "squared_error",
    "taught",
    "train_step",
]


@dataclass(frozen=True)
class Step:
    """The result of one training step.

    Attributes:
        loss: the loss before the step: a detached scalar in the dtype of the loss function.
        skipped: whether the step was skipped because a gradient was infinite or NaN.

    >>> Step(torch.tensor(0.5), skipped=False).loss.item()
    0.5
    """

    loss: Tensor
    skipped: bool


def train_step(  # noqa: PLR0913 -- a step needs all of them
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: Sequence[Tensor],
    optimizer: Optimizer,
    precision: str,
    scaler: GradScaler | None = None,
    clip: float | None = None,
) -> Step:
    """Take one step of `optimizer` on one batch.

    The entry of this name is another thing: 12 steps on `mlp`.

    Args:
        model: maps the inputs of the batch to an output; eager, scripted or compiled.
        loss_fn: called as loss_fn(output, target); returns a scalar.
        batch: the inputs, then the target as the last element.
        optimizer: holds the model's parameters. Autocast runs on their device.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        scaler: required for "amp_fp16", because small float16 gradients vanish without it. Pass the same scaler in
            every step of a run. To train without scaling on purpose, pass `GradScaler(enabled=False)`.
        clip: the largest allowed norm of all unscaled gradients together, or None.

    Raises:
        TypeError: an argument has the wrong type, such as a list for a tensor of the batch.
        ValueError: `precision` is unknown, "amp_fp16" has no scaler, `clip` is not positive, the loss is no scalar, or
            it depends on no parameter of the optimizer.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = SGD(model.parameters(), lr=0.1)
    >>> train_step(model, squared_error, (torch.ones(4, 2), torch.zeros(4, 1)), optimizer, "amp_bf16").skipped
    False
    """
    want_step("train_step", precision, scaler, clip, optimizer, model=model, loss_fn=loss_fn)
    want_batch("train_step", batch)
    if precision == "amp_fp16" and scaler is None:
        raise ValueError("train_step: scaler must be a torch.amp.GradScaler for amp_fp16, got None")
    device_type = device_of(optimizer).type
    scaler = scaler or GradScaler(device_type, enabled=False)
    *inputs, target = batch
    optimizer.zero_grad()
    with autocast(precision, device_type):
        loss = loss_fn(model(*inputs), target)
    backward("train_step", loss, scaler, optimizer=optimizer)
    finite = unscale_and_step(optimizer, scaler, clip)
    scaler.update()
    return Step(loss.detach(), skipped=not finite)


@dataclass(frozen=True)
class Fit:
    """The result of a run of training steps.

    Attributes:
        losses: (steps,), the loss before each step, in the dtype and on the device of the loss.
        skipped: number of steps that were skipped because a gradient was not finite.
        seconds: wall-clock time of all steps, including the first, which is the slowest.

    >>> Fit(torch.tensor([2.0, 1.0]), skipped=0, seconds=0.1).losses[-1].item()
    1.0
    """

    losses: Tensor
    skipped: int
    seconds: float


def fit(  # noqa: PLR0913 -- a step needs them
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: Sequence[Tensor],
    optimizer: Optimizer,
    *,
    steps: int,
    precision: str = "fp32",
    scaler: GradScaler | None = None,
    progress: Callable[[int, Step], None] | None = None,
) -> Fit:
    """Take several steps on one batch; `zoo.training.epochs.train` takes a DataLoader.

    Args:
        model: maps the inputs of the batch to an output.
        loss_fn: called as loss_fn(output, target); returns a scalar.
        batch: the inputs, then the target as the last element.
        optimizer: holds the model's parameters.
        steps: number of steps, at least one.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        scaler: as in `train_step`; None creates one for "amp_fp16".
        progress: called after every step with its number, counted from 1, and its result.

    Raises:
        TypeError, ValueError: `steps` is not positive, or as in `train_step`.
        FloatingPointError: the loss is NaN, 20 steps in a row were skipped, or the scale fell below 1.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = SGD(model.parameters(), lr=0.1)
    >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
    >>> done = fit(model, torch.nn.functional.mse_loss, (x, 2 * x), optimizer, steps=50)
    >>> bool(done.losses[-1] < done.losses[0]), done.skipped
    (True, 0)
    """
    want_sizes("fit", steps=steps)
    want_step("fit", precision, scaler, None, optimizer, model=model, loss_fn=loss_fn)
    want_batch("fit", batch, "; zoo.training.epochs.train takes a loader")
    if progress is not None:
        want_callables("fit", progress=progress)
    scaler = scaler or GradScaler(device_of(optimizer).type, enabled=precision == "amp_fp16")
    health = Health("fit", scaler)
    losses, skipped = [], 0
    started = time.perf_counter()
    for number in range(1, steps + 1):
        step = train_step(model, loss_fn, batch, optimizer, precision, scaler)
        health.check(f"step {number}", step.loss, skipped=step.skipped)
        losses.append(step.loss)
        skipped += step.skipped
        if progress is not None:
            progress(number, step)
    return Fit(torch.stack(losses), skipped, time.perf_counter() - started)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Compute the mean of (output − target)², in the dtype of the target; both have one shape.

    Raises:
        TypeError: an argument is not a tensor, or does not hold floating-point numbers.
        ValueError: the shapes differ: a mean over a broadcast is the error of no sample.

    >>> squared_error(torch.ones(4, dtype=torch.bfloat16), torch.tensor([1.0, 1.0, 1.0, 3.0]))
    tensor(1.)
    """
    want_floating("squared_error", "output", output)
    want_floating("squared_error", "target", target)
    if output.shape != target.shape:
        raise ValueError(
            f"squared_error: target must have the shape of output, {list(output.shape)}, got {list(target.shape)}"
        )
    return (output.to(target.dtype) - target).square().mean()


def loss_curve(  # noqa: PLR0913 -- a step needs them
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: Sequence[Tensor],
    optimizer: Optimizer,
    precision: str,
    *,
    steps: int,
    clip: float | None = None,
) -> Tensor:
    """Return the loss before each of a few steps, (steps,), for `Spec.fit`; arguments as in `train_step`.

    The scaler starts at 2¹⁰. From its default, 2¹⁶, it would skip steps until it has found a scale that fits.

    Raises:
        TypeError, ValueError: `steps` is not positive, or as in `train_step`.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = SGD(model.parameters(), lr=0.1)
    >>> loss_curve(model, squared_error, (torch.ones(2, 1), torch.ones(2, 1)), optimizer, "fp32", steps=3).shape
    torch.Size([3])
    """
    want_sizes("loss_curve", steps=steps)
    want_step("loss_curve", precision, None, clip, optimizer, model=model, loss_fn=loss_fn)
    want_batch("loss_curve", batch)
    scaler = GradScaler(device_of(optimizer).type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    done = [train_step(model, loss_fn, batch, optimizer, precision, scaler, clip) for _ in range(steps)]
    return torch.stack([step.loss for step in done])


def _clipped_steps(call: Callable[..., Tensor], model: torch.nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    optimizer = SGD(model.parameters(), lr=0.5, momentum=0.5)
    return loss_curve(call, squared_error, (x, y), optimizer, precision, steps=12, clip=0.5)


def backward_by_hand(parameters: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute the squared error of `mlp` and its gradients with the chain rule written out, for references.

    Args:
        parameters: weight and bias of the first layer, then those of the second.
        x: (batch, in_features).
        y: (batch, out_features).

    Raises:
        TypeError: `x`, `y` or a parameter is not a tensor.

    >>> model = mlp(3, 4, 2)
    >>> x, y = torch.randn(5, 3), torch.randn(5, 2)
    >>> loss, gradients = backward_by_hand([p.detach() for p in model.parameters()], x, y)
    >>> squared_error(model(x), y).backward()
    >>> all(torch.allclose(p.grad, g, atol=1e-6) for p, g in zip(model.parameters(), gradients))
    True
    """
    want_tensors("backward_by_hand", x=x, y=y, **{f"parameters[{i}]": p for i, p in enumerate(parameters)})
    w1, b1, w2, b2 = parameters
    hidden = (x @ w1.t() + b1).clamp(min=0)
    error = hidden @ w2.t() + b2 - y
    slope = 2 * error / error.numel()
    behind = (slope @ w2) * (hidden > 0)
    return (error * error).sum() / error.numel(), [behind.t() @ x, behind.sum(0), slope.t() @ hidden, slope.sum(0)]


def _plain_steps(model: torch.nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses with backward, clipping and momentum written out."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    losses = []
    for _ in range(12):
        loss, gradients = backward_by_hand(parameters, x, y)
        losses.append(loss)
        norm = torch.stack([(g * g).sum() for g in gradients]).sum().sqrt()
        share = min(1.0, 0.5 / (float(norm) + 1e-6))
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed.mul_(0.5).add_(gradient * share)
            parameter.sub_(0.5 * speed)
    return torch.stack(losses)


def taught(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw inputs (32, 64) and the targets (32, 10) of a random teacher network, for the cases of trainings of `mlp`.

    Raises:
        TypeError: `generator` is not a torch.Generator.

    >>> [tuple(t.shape) for t in taught(torch.Generator().manual_seed(0))]
    [(32, 64), (32, 10)]
    """
    want_instances("taught", torch.Generator, generator=generator)
    x = torch.randn(32, 64, generator=generator)
    return x, 3 * torch.tanh(x @ torch.randn(64, 10, generator=generator) / 8)


SPEC = Spec(
    name="train_step",
    summary="12 clipped steps of SGD with momentum on `mlp`; the loss before each",
    formula="v ← v/2 + clip(∇L, 1/2), w ← w − v/2",
    shapes="(batch, 64), (batch, 10) → (12,)",
    source="articles on automatic mixed precision; Effective PyTorch, automatic mixed precision",
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_plain_steps,
    fit=_clipped_steps,
)

"""Epochs over a DataLoader under autocast, with accumulation, clipping, a schedule, averaged weights and checkpoints.

Source: PyTorch, "Automatic Mixed Precision examples" and "Training with PyTorch"; the articles on automatic mixed
precision. A step uses the gradient of the mean loss over the samples of `accumulate` batches. What follows a step, such
as the schedule, happens only if the step was taken.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from zoo.amp import Health, autocast, backward, device_of, unscale_and_step, want_batch, want_loss, want_step
from zoo.arguments import want_callables, want_numbers, want_sizes
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.checkpoint import Part, Place, load_checkpoint, save_checkpoint
from zoo.training.step import Fit, Step, backward_by_hand, squared_error, taught


def train(  # noqa: PLR0913 -- what a training is made of
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    loader: Iterable[Sequence[Tensor]],
    optimizer: Optimizer,
    *,
    epochs: int,
    precision: str = "fp32",
    scaler: GradScaler | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    scheduler: LRScheduler | None = None,
    average: AveragedModel | None = None,
    checkpoint: str | Path | None = None,
    save_every: int | None = None,
    min_scale: float = 1.0,
    max_skips: int = 20,
    progress: Callable[[int, Step], None] | None = None,
) -> Fit:
    """Train for some epochs, or go on with the training that a checkpoint holds.

    Args:
        model: maps the inputs of a batch to an output; eager, scripted, compiled or `DistributedDataParallel`.
        loss_fn: called as loss_fn(output, target); returns the mean loss over the samples, a scalar.
        loader: a DataLoader, or whatever gives batches each time that it is iterated over: tuples of tensors, first
            inputs, last the target, each (batch, …). They are moved to the device of the parameters.
        optimizer: holds the model's parameters.
        epochs: number of times to go through the loader.
        precision: "fp32", "amp_fp16" or "amp_bf16".
        scaler: None creates one for "amp_fp16".
        accumulate: number of batches for each step; the last step of an epoch takes those that are left.
        clip: the largest allowed norm of all unscaled gradients together, or None.
        scheduler: moves on after each step that is taken.
        average: averaged weights, such as `zoo.training.weight_average.averaged(model)`; updated after each step.
        checkpoint: a file, written at the end of each epoch. If it exists, the run goes on where it stood, bit for bit.
        save_every: write the checkpoint every so many steps too.
        min_scale: the run ends if the scale falls below this.
        max_skips: the run ends if so many steps in a row are skipped.
        progress: called after every step with its number, counted from 1, and its result.

    Returns:
        The loss before each step, on the CPU, the number of skipped steps and the seconds, those before the checkpoint
        included.

    Raises:
        TypeError, ValueError: an argument or a batch is wrong, or the loader is empty; the message names it.
        CheckpointError: the checkpoint is damaged, or of another training.
        FloatingPointError: the loss is NaN, or too many steps were skipped; the message says where.

    >>> model = nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 64).unsqueeze(1)
    >>> loader = DataLoader(TensorDataset(x, 2 * x), batch_size=8, shuffle=True)
    >>> done = train(model, squared_error, loader, SGD(model.parameters(), lr=0.2), epochs=10, precision="amp_bf16")
    >>> done.losses.shape, round(model.weight.item(), 1)
    (torch.Size([80]), 2.0)
    """
    want_step("train", precision, scaler, clip, optimizer, model=model, loss_fn=loss_fn)
    want_sizes("train", epochs=epochs, accumulate=accumulate, max_skips=max_skips)
    want_numbers("train", min_scale=min_scale)
    if progress is not None:
        want_callables("train", progress=progress)
    _want_loader(loader, epochs)
    _want_rest(model, scheduler, average, checkpoint, save_every)
    scaler = scaler or GradScaler(device_of(optimizer).type, enabled=precision == "amp_fp16")
    health, place = Health("train", scaler, min_scale, max_skips), Place(loader)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "scheduler": scheduler, "average": average}
    store = _Store(checkpoint, save_every, place, parts)
    started = time.perf_counter() - place.seconds
    while place.epoch < epochs:
        for batches in place.groups(accumulate):
            step = _step(model, loss_fn, batches, optimizer, precision, scaler, clip)
            place.losses.append(step.loss.cpu())
            place.skipped += step.skipped
            place.seconds = time.perf_counter() - started
            number = len(place.losses)
            health.check(f"epoch {place.epoch + 1}, step {number}", place.losses[-1], skipped=step.skipped)
            if not step.skipped:
                _follow(model, scheduler, average)
            store.after_step(number)
            if progress is not None:
                progress(number, step)
        place.end_epoch("train")
        store.save()
    return Fit(torch.stack(place.losses), place.skipped, place.seconds)


def _want_loader(loader: Any, epochs: int) -> None:
    kind = type(loader).__name__
    if isinstance(loader, nn.Module) or not isinstance(loader, Iterable):
        raise TypeError(f"train: loader must give batches, got {kind}")
    if epochs > 1 and isinstance(loader, Iterator):
        raise TypeError(
            f"train: loader must give its batches again in each of {epochs} epochs, as a DataLoader or a list does, "
            f"got {kind}, which gives them once"
        )


def _want_rest(model: Any, scheduler: Any, average: Any, checkpoint: Any, save_every: Any) -> None:
    """Check the arguments that only `train` has."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError("train: scheduler must step without a metric, got ReduceLROnPlateau")
    kinds = (
        ("scheduler", scheduler, LRScheduler, "a torch.optim LRScheduler"),
        ("average", average, AveragedModel, "an AveragedModel"),
        ("checkpoint", checkpoint, (str, Path), "a path"),
    )
    for argument, value, kind, words in kinds:
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"train: {argument} must be {words}, got {type(value).__name__}")
    if save_every is not None:
        want_sizes("train", save_every=save_every)
        if checkpoint is None:
            raise ValueError("train: save_every needs a checkpoint, got None")
    if checkpoint is not None and isinstance(model, DistributedDataParallel):
        raise ValueError("train: checkpoint must be None for a DistributedDataParallel model")


def _step(  # noqa: PLR0913 -- a step needs all of them
    model: Callable[..., Tensor],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[Sequence[Tensor]],
    optimizer: Optimizer,
    precision: str,
    scaler: GradScaler,
    clip: float | None,
) -> Step:
    """Take one step on the mean loss over the samples of all batches."""
    samples = _samples_of(batches)
    device = device_of(optimizer)
    optimizer.zero_grad()
    losses = []
    for number, batch in enumerate(batches, 1):
        *inputs, target = (tensor.to(device, non_blocking=True) for tensor in batch)
        with _gradients_kept_here(model) if number < len(batches) else contextlib.nullcontext():
            with autocast(precision, device.type):
                loss = loss_fn(model(*inputs), target)
                want_loss("train", loss)
                loss = loss * (len(target) / samples)
            backward("train", loss, scaler, optimizer=optimizer)
        losses.append(loss.detach())
    finite = unscale_and_step(optimizer, scaler, clip)
    scaler.update()
    return Step(_mean_of_ranks(model, torch.stack(losses).sum()), skipped=not finite)


def _samples_of(batches: Sequence[Sequence[Tensor]]) -> int:
    """Check the batches, and return the number of their samples."""
    for batch in batches:
        want_batch("train", batch)
        if not batch[-1].dim() or not len(batch[-1]):
            raise ValueError(f"train: the target of a batch must have shape (batch, …), got {list(batch[-1].shape)}")
    return sum(len(batch[-1]) for batch in batches)


def _gradients_kept_here(model: Callable[..., Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which backward sends no gradients to the other ranks: the last batch sends the sum."""
    kept: contextlib.AbstractContextManager[Any] = getattr(model, "no_sync", contextlib.nullcontext)()
    return kept


def _mean_of_ranks(model: Callable[..., Tensor], loss: Tensor) -> Tensor:
    """Return the loss of the whole batch, so that a NaN on one rank stops all of them."""
    if isinstance(model, DistributedDataParallel):
        torch.distributed.all_reduce(loss, group=model.process_group)
        loss /= torch.distributed.get_world_size(model.process_group)
    return loss


def _follow(model: Any, scheduler: LRScheduler | None, average: AveragedModel | None) -> None:
    """Do what follows a step that was taken."""
    if scheduler is not None:
        scheduler.step()
    if average is not None:
        average.update_parameters(model)


class _Store:
    """Reads the checkpoint of a run, if there is one, and writes it."""

    def __init__(self, path: str | Path | None, every: int | None, place: Place, parts: dict[str, Any]) -> None:
        self._path, self._every = path, every
        given: dict[str, Part] = {name: part for name, part in parts.items() if part is not None}
        self._parts = {**given, "place": place, "generators": place.generators}
        if path is not None and Path(path).exists():
            load_checkpoint(path, **self._parts)

    def after_step(self, number: int) -> None:
        if self._every and number % self._every == 0:
            self.save()

    def save(self) -> None:
        if self._path is not None:
            save_checkpoint(self._path, **self._parts)


def _epochs(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss before each of 12 steps: 6 epochs of 2 steps, on batches of 10 and 10, then 10 and 2 rows."""
    optimizer = SGD(model.parameters(), lr=0.6, momentum=0.5)
    generator = torch.Generator()  # an epoch takes a number from it, or else from the global generator
    loader = DataLoader(TensorDataset(x, y), batch_size=10, generator=generator)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    schedule = ExponentialLR(optimizer, gamma=0.9)
    options: dict[str, Any] = {"precision": precision, "scaler": scaler, "accumulate": 2, "clip": 0.8}
    return train(call, squared_error, loader, optimizer, epochs=6, scheduler=schedule, **options).losses.to(x.device)


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses on whole groups of rows, with clipping, momentum and the falling rate written out."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    losses = []
    for number in range(12):
        rows = slice(0, 20) if number % 2 == 0 else slice(20, 32)
        loss, gradients = backward_by_hand(parameters, x[rows], y[rows])
        losses.append(loss)
        norm = float(torch.cat([g.flatten() for g in gradients]).square().sum().sqrt())
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed.mul_(0.5).add_(gradient * min(1.0, 0.8 / (norm + 1e-6)))
            parameter.sub_(0.6 * 0.9**number * speed)
    return torch.stack(losses)


SPEC = Spec(
    name="train_epochs",
    summary="6 epochs of SGD on `mlp` with accumulation, clipping and a schedule; the loss before each step",
    formula="v ← v/2 + clip(∇L, 0.8), w ← w − 0.6 · 0.9ᵗ v, L = mean loss over the samples of two batches",
    shapes="(batch, 64), (batch, 10) → (12,)",
    source='PyTorch documentation, "Automatic Mixed Precision examples"',
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_epochs,
)

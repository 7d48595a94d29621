"""Checkpoints from which a training continues bit for bit: its state, its random generators, its place in the data.

Source: PyTorch, "Saving and loading a general checkpoint", which leaves out scaler, generators and place. The file is
written beside the old one and then put in its place, so a kill in the middle leaves the old one whole.
`torch.load(path, weights_only=True)` reads it.
"""

from __future__ import annotations

import os
import random
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from zoo.arguments import want_paths
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.step import backward_by_hand, squared_error, taught, train_step

FORMAT = "torch-conformance training 1"
PLAIN = (Tensor, int, float, str, bool, type(None))  # with tuples, lists and dicts: what weights_only reads


class Part(Protocol):
    """What has a state, such as a model, an optimizer, a scheduler, a scaler or averaged weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take over a state."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read; the message is one line."""


def save_checkpoint(path: str | Path, **parts: Part) -> None:
    """Write the state of all parts to a file, which replaces an older one only when it is complete.

    Args:
        path: the file.
        parts: model, optimizer … by the names under which `load_checkpoint` gets them.

    Raises:
        CheckpointError: a part has no state, or holds what `torch.load(weights_only=True)` does not read.
        TypeError, OSError: `path` is no path, or the file cannot be written.

    >>> path = Path(tempfile.mkdtemp(), "run.pt")
    >>> save_checkpoint(path, model=nn.Linear(2, 1), generators=Generators())
    >>> sorted(torch.load(path, weights_only=True)["parts"])
    ['generators', 'model']
    """
    want_paths("save_checkpoint", path=path)
    path = Path(path)
    states = {name: _state_of(name, part) for name, part in parts.items()}
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        torch.save({"format": FORMAT, "parts": states}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load_checkpoint(path: str | Path, **parts: Part) -> None:
    """Give every part the state that `save_checkpoint` wrote.

    Args:
        path: the file.
        parts: the same names as in `save_checkpoint`.

    Raises:
        CheckpointError: the file is damaged, is no checkpoint of `save_checkpoint`, has other parts, or the state of a
            part does not fit. Parts before the one that is named may have changed.
        TypeError, OSError: `path` is no path, or the file cannot be read.

    >>> path = Path(tempfile.mkdtemp(), "run.pt")
    >>> save_checkpoint(path, model=nn.Linear(2, 1))
    >>> load_checkpoint(path, model=nn.Linear(2, 1), optimizer=SGD([torch.ones(1)]))
    Traceback (most recent call last):
    zoo.training.checkpoint.CheckpointError: run.pt holds model, but model, optimizer are to be loaded
    """
    want_paths("load_checkpoint", path=path)
    path = Path(path)
    states = _read(path)
    if set(states) != set(parts):
        raise CheckpointError(f"{path.name} holds {', '.join(states)}, but {', '.join(parts)} are to be loaded")
    for name, part in parts.items():
        try:
            part.load_state_dict(states[name])
        except Exception as problem:
            raise CheckpointError(f"{path.name}: the state of {name} does not fit: {_line(problem)}") from problem


def _state_of(name: str, part: Part) -> dict[str, Any]:
    if not hasattr(part, "state_dict"):
        raise CheckpointError(f"save_checkpoint: {name} must have a state_dict, got {type(part).__name__}")
    state = part.state_dict()
    odd = next((v for v in _leaves(state) if not isinstance(v, PLAIN)), None)
    if odd is not None:
        raise CheckpointError(f"save_checkpoint: {name} holds a {type(odd).__name__}, which weights_only does not read")
    return state


def _leaves(state: Any) -> Iterator[Any]:
    if type(state) in (tuple, list):
        for value in state:
            yield from _leaves(value)
    elif isinstance(state, (dict, Counter)):
        yield from _leaves([*state, *state.values()])
    else:
        yield state


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        try:
            if zipfile.ZipFile(file).testzip():  # torch.load compares no checksums
                raise zipfile.BadZipFile("a checksum is wrong")  # noqa: TRY301 -- one answer to all damage
            file.seek(0)
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as problem:
            raise CheckpointError(f"{path.name} is damaged or no checkpoint: {_line(problem)}") from problem
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path.name} is no checkpoint of save_checkpoint")
    states: dict[str, Any] = found["parts"]
    return states


def _line(problem: Exception) -> str:
    words = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {words[:200]}"


class Generators:
    """The states of the random generators: torch's for CPU and CUDA, Python's, and those of a loader.

    A generator of NumPy or of your own data set is not among them.

    >>> generators = Generators()
    >>> state, first = generators.state_dict(), torch.rand(2)
    >>> generators.load_state_dict(state)
    >>> torch.equal(torch.rand(2), first)
    True
    """

    def __init__(self, loader: Iterable[Any] | None = None) -> None:
        sampler = getattr(loader, "sampler", None)
        owners = (loader, sampler, getattr(loader, "batch_sampler", None), getattr(sampler, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        self._own = {id(g): g for g in found if isinstance(g, torch.Generator)}.values()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        own = [generator.get_state() for generator in self._own]
        return {"cpu": torch.get_rng_state(), "cuda": cuda, "python": random.getstate(), "loader": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the states of all generators."""
        torch.set_rng_state(state["cpu"])
        for number, cuda in enumerate(state["cuda"]):
            torch.cuda.set_rng_state(cuda, number)
        random.setstate(state["python"])
        for generator, own in zip(self._own, state["loader"], strict=True):
            generator.set_state(own)


class Place:
    """The place of a run in its data, and the losses on the way to it.

    Attributes:
        epoch: number of finished epochs.
        batches: number of batches of the current epoch that steps have used.
        losses: the loss before each step, on the CPU.
        skipped, seconds: number of skipped steps, and wall-clock time of the run so far.
        generators: the random generators of the run.

    >>> place = Place([1, 2, 3])
    >>> list(place.groups(2)), place.batches
    ([[1, 2], [3]], 3)
    >>> place.load_state_dict({**place.state_dict(), "batches": 2})  # as it was after the first group
    >>> list(place.groups(2))
    [[3]]
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.epoch, self.batches, self.skipped, self.seconds = 0, 0, 0, 0.0
        self.losses: list[Tensor] = []
        self._loader, self.generators = loader, Generators(loader)
        self._start = self.generators.state_dict()

    def groups(self, size: int) -> Iterator[list[Any]]:
        """Give the batches that the current epoch still has, `size` together; the last group may be smaller.

        Raises:
            CheckpointError: the loader ends before the place at which the run stood.
        """
        stood = self.generators.state_dict()
        if self.batches:
            self.generators.load_state_dict(self._start)  # so the loader gives the same order again
        self._start = self.generators.state_dict()
        set_epoch = getattr(getattr(self._loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        batches = iter(self._loader)
        if self.batches:
            seen = sum(1 for _ in islice(batches, self.batches))
            if seen < self.batches:
                raise CheckpointError(f"the run stood after batch {self.batches}, but the loader gives only {seen}")
            self.generators.load_state_dict(stood)
        while group := list(islice(batches, size)):
            self.batches += len(group)
            yield group

    def end_epoch(self, function: str) -> None:
        """Go on to the start of the next epoch.

        Raises:
            ValueError: the loader gave no batch in this epoch; `function` names who says so.
        """
        if not self.batches:
            raise ValueError(f"{function}: loader gave no batch in epoch {self.epoch + 1}")
        self.epoch, self.batches = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and the generators as they were when the epoch began."""
        losses = torch.stack(self.losses) if self.losses else torch.empty(0)
        counts = {"epoch": self.epoch, "batches": self.batches, "skipped": self.skipped}
        return {**counts, "seconds": self.seconds, "losses": losses, "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a place."""
        self.epoch, self.batches = state["epoch"], state["batches"]
        self.skipped, self.seconds = state["skipped"], state["seconds"]
        self.losses, self._start = list(state["losses"].unbind()), state["start"]


def _stopped_steps(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Take 6 steps, save, train on into nowhere, load into new objects, and take 6 more."""
    optimizer, schedule, scaler = _parts(model, x, precision)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pt")
        for number in range(1, 13):
            losses.append(train_step(call, squared_error, (x, y), optimizer, precision, scaler).loss)
            schedule.step()
            if number == 6:  # noqa: PLR2004 -- the middle
                save_checkpoint(path, model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
                train_step(call, squared_error, (-x, y), optimizer, precision, scaler)
                optimizer, schedule, scaler = _parts(model, x, precision)
                load_checkpoint(path, model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
    return torch.stack(losses)


def _parts(model: nn.Module, x: Tensor, precision: str) -> tuple[SGD, ExponentialLR, GradScaler]:
    optimizer = SGD(model.parameters(), lr=0.4, momentum=0.5)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    return optimizer, ExponentialLR(optimizer, gamma=0.9), scaler


def _plain_steps(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the losses of 12 steps without a stop, with backward, momentum and the falling rate written out."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    losses = []
    for number in range(12):
        loss, gradients = backward_by_hand(parameters, x, y)
        losses.append(loss)
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed.mul_(0.5).add_(gradient)
            parameter.sub_(0.4 * 0.9**number * speed)
    return torch.stack(losses)


SPEC = Spec(
    name="train_resumed",
    summary="12 steps of SGD on `mlp`, stopped after 6 and resumed from a checkpoint; the loss before each",
    formula="v ← v/2 + ∇L, w ← w − 0.4 · 0.9ᵗ v",
    shapes="(batch, 64), (batch, 10) → (12,)",
    source='PyTorch documentation, "Saving and loading a general checkpoint"',
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_plain_steps,
    fit=_stopped_steps,
)

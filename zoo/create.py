"""Builds the models of the catalogue as the matrix judges them, and draws inputs for them."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import torch
from torch import nn

from zoo.arguments import want_integers, want_sizes, want_string
from zoo.case import Case
from zoo.catalog import get_spec
from zoo.spec import Model, Spec
from zoo.trainer import Trainer


def create_model(name: str, *, seed: int | None = None, device: torch.device | str = "cpu", **kwargs: Any) -> Model:
    """Build a model as the matrix judges it.

    Args:
        name: a name from `list_models()`, or a model at a size of its scale, such as "merge@256".
        seed: seed of the weights. None draws them from torch's global generator; a number leaves that generator alone.
        device: device of the parameters and buffers.
        kwargs: passed on to the model's constructor; they replace the spec's own values. No two models share a module,
            a tensor or a generator that you do not pass to both.

    Returns:
        An `nn.Module`, or the function itself for an op or a custom Function; a scripted one if the entry is scripted,
        and in eval mode if the entry is judged so. For a training, a `zoo.Trainer`, whose call trains its model.

    Raises:
        UnknownModelError: there is no such model.
        TypeError: the entry takes no such argument (the message lists those that it takes), or one has the wrong type.
        ValueError: torch has no such device here.

    >>> import torch, zoo
    >>> zoo.create_model("merge", in_features1=4, in_features2=2, out_features=3)(torch.ones(5, 4), torch.ones(2)).shape
    torch.Size([5, 3])
    >>> zoo.create_model("fit_line", seed=0)(*zoo.example_inputs("fit_line")).shape
    torch.Size([8])
    """
    want_string("create_model", name=name)
    if seed is not None:
        want_integers("create_model", seed=seed)
    _want_device("create_model", device)
    spec = get_spec(name)
    _want_taken(spec, kwargs)
    with contextlib.nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        model = spec.initialised(spec.build(**kwargs))
    if not isinstance(model, nn.Module):
        return model
    model = model.to(device)
    return model if spec.fit is None else Trainer(model, spec.fit)


def _want_taken(spec: Spec, given: dict[str, Any]) -> None:
    places = inspect.signature(spec.build).parameters.values()
    taken = [place.name for place in places if place.kind not in (place.POSITIONAL_ONLY, place.VAR_POSITIONAL)]
    unknown = [repr(name) for name in given if name not in taken]
    if unknown and not any(place.kind is place.VAR_KEYWORD for place in places):
        takes = ", ".join(taken) or "no arguments: those of a call go to what create_model returns"
        raise TypeError(f"create_model: {spec.name} has no argument {' and no '.join(unknown)}; it takes {takes}")


def _want_device(function: str, device: object) -> None:
    if not isinstance(device, (torch.device, str)):
        kind = "None" if device is None else type(device).__name__
        raise TypeError(f"{function}: device must be a torch.device or its name, got {kind}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:  # torch asserts that it was compiled for the device
        reason = re.split(r"\n|\. ", str(problem))[0]
        raise ValueError(f"{function}: device must be one that torch can use here, got {device!s}: {reason}") from None


def create_model_and_inputs(
    name: str, *, seed: int = 0, device: torch.device | str = "cpu", batch_size: int | None = None
) -> tuple[Model, tuple[Any, ...]]:
    """Build a model, and draw inputs for it: `create_model` and `example_inputs` in one call, with one seed.

    Raises:
        UnknownModelError, TypeError, ValueError: as these two.

    >>> import zoo
    >>> model, inputs = zoo.create_model_and_inputs("mlp", batch_size=3)
    >>> model(*inputs).shape
    torch.Size([3, 10])
    """
    want_string("create_model_and_inputs", name=name)
    want_integers("create_model_and_inputs", seed=seed)
    _want_device("create_model_and_inputs", device)
    if batch_size is not None:
        want_sizes("create_model_and_inputs", batch_size=batch_size)
    model = create_model(name, seed=seed, device=device)
    return model, example_inputs(name, seed=seed, device=device, batch_size=batch_size)


def example_inputs(
    name: str,
    case: str = "",
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
) -> tuple[Any, ...]:
    """Draw positional inputs for a model.

    Args:
        name: a name from `list_models()`.
        case: name of one of the spec's cases; "" means the first.
        seed: seed of the random numbers.
        device: device of the returned tensors.
        batch_size: size of the axis that the spec's `shapes` call "batch", or of the first axis where they begin with
            "..."; the case is drawn as often as that takes. None: as the case has it.

    Raises:
        UnknownModelError: there is no such model.
        UnknownNameError: the model has no such case.
        ValueError: torch has no such device here, no input has a batch, `batch_size` is below 1, or the case has
            keyword arguments; `get_spec(name).case(case).draw(generator)` returns them all.
        TypeError: an argument has the wrong type.

    >>> import zoo
    >>> [tuple(x.shape) for x in zoo.example_inputs("merge")]
    [(5, 3, 5), (5, 1, 6)]
    >>> [tuple(x.shape) for x in zoo.example_inputs("lstm_cell", batch_size=8)]
    [(4, 8, 5), (8, 6), (8, 6)]
    """
    want_string("example_inputs", name=name, case=case)
    want_integers("example_inputs", seed=seed)
    _want_device("example_inputs", device)
    spec, generator = get_spec(name), torch.Generator().manual_seed(seed)
    chosen = spec.case(case) if case else spec.cases[0]
    drawn = chosen.draw(generator)
    if drawn.kwargs:
        raise ValueError(
            f"example_inputs: case {case or spec.cases[0].name!r} of {name} has keyword arguments "
            f"{list(drawn.kwargs)}; zoo.get_spec({name!r}).case(…).draw(generator) returns all arguments"
        )
    args = drawn.args if batch_size is None else _batched(spec, chosen, drawn.args, batch_size, generator)
    return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in args)


def _batched(spec: Spec, case: Case, first: tuple[Any, ...], size: int, generator: torch.Generator) -> tuple[Any, ...]:
    """The inputs of as many draws as `size` takes, joined along their batch axes."""
    want_sizes("example_inputs", batch_size=size)
    axes = {i: axis for i, axis in enumerate(_batch_axes(spec.shapes, first)) if axis is not None}
    length = min((first[i].size(axis) for i, axis in axes.items()), default=0)
    if not length:
        raise ValueError(f"example_inputs: batch_size: no input of {spec.name} has a batch in case {case.name!r}")
    draws = [first, *(case.draw(generator).args for _ in range((size - 1) // length))]
    joined = {i: torch.cat([args[i] for args in draws], axis).narrow(axis, 0, size) for i, axis in axes.items()}
    return tuple(joined.get(i, x) for i, x in enumerate(first))


def _batch_axes(shapes: str, args: tuple[Any, ...]) -> list[int | None]:
    """The batch axis of each input by the words of its shape; None if it has none.

    >>> _batch_axes("(steps, batch, n), (...) → (n,)", (torch.ones(2, 3, 4), torch.ones(5)))
    [1, 0]
    """
    found = re.findall(r"\(([^()]*)\)(?: × (\d))?", shapes.partition("→")[0])
    named = [one.split(", ") for one, times in found for _ in range(int(times or 1))]
    axes: list[int | None] = []
    for words, x in zip(named, args, strict=False):
        leads = (
            words[0] in ("...", "…")
            and words[0] not in words[1:]
            and isinstance(x, torch.Tensor)
            and x.dim() >= len(words)
        )
        axes.append(words.index("batch") if "batch" in words else 0 if leads else None)
    return axes

"""Gives another implementation of a model the weights and flags of the model: a trusted one, or a candidate."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from conformance.evaluate import inputs, weights
from conformance.one_line import some
from zoo.case import SpecError

LISTED = 3  # names of each kind in a message


def adopt_state(made: Any, model: Any, where: str, *, any_width: bool = False) -> None:
    """Copy parameters, buffers, training flags, frozen parameters and device of a model into another implementation.

    Args:
        made: the other implementation, a module or a function.
        model: the model.
        where: what the other implementation is, for messages.
        any_width: floating dtypes may be wider or narrower than the model's.

    Raises:
        SpecError: the two do not have the same parameters and buffers.
    """
    theirs, ours = weights.state_of(made), weights.state_of(model)
    _check_names(where, ours, theirs)
    for name, tensor in ours.items():
        other = theirs[name]
        alike = tensor.dtype == other.dtype or (any_width and inputs.widest(tensor.dtype) == inputs.widest(other.dtype))
        if tensor.shape != other.shape or not alike:
            got, wanted = (f"{t.dtype} {tuple(t.shape)}".removeprefix("torch.") for t in (other, tensor))
            raise SpecError(f"{where}: {name} is {got}, and the model's is {wanted}")
    weights.reset(made, ours)
    if isinstance(made, torch.nn.Module) and isinstance(model, torch.nn.Module):
        _adopt_flags(made, model)
        first = next(iter(ours.values()), None)
        if first is not None:
            made.to(first.device)


def _check_names(where: str, ours: Collection[str], theirs: Collection[str]) -> None:
    missing, extra = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    if missing or extra:
        parts = [f"it lacks {some(missing, LISTED)}"] * bool(missing)
        parts += [f"it alone has {some(extra, LISTED)}"] * bool(extra)
        raise SpecError(f"{where}: parameters and buffers must have the model's names, but {' and '.join(parts)}")


def _adopt_flags(made: torch.nn.Module, model: torch.nn.Module) -> None:
    trained = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(trained[name].requires_grad if name in trained else parameter.requires_grad)
    modules = dict(model.named_modules())
    for name, module in made.named_modules():
        module.training = modules[name].training if name in modules else model.training

"""Builds the callable of a candidate: the replacement of a model, on the weights of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.axes import Prepared
from zoo.candidate import Candidate
from zoo.case import SpecError
from zoo.spec import Spec

LISTED = 3  # names of each kind in a message


def replaced(spec: Spec, candidate: Candidate, model: Any) -> Prepared:
    """The candidate with the weights, buffers, training modes and frozen parameters of the model.

    Args:
        spec: the spec of the model.
        candidate: one of its candidates.
        model: the model on representable weights.

    Raises:
        SpecError: parameters or buffers do not have the names, shapes and dtypes of the model's.
        Whatever the candidate raises.
    """
    made = candidate.build()
    where = f"candidate {candidate.name!r} of {spec.name}"
    if not callable(made):
        raise SpecError(f"{where}: build returned a {type(made).__name__}, which cannot be called")
    _check_names(where, _state(model), _state(made))
    if isinstance(made, torch.nn.Module) and isinstance(model, torch.nn.Module):
        _take_over(made, model)
    return Prepared(made, dict, made)


def _state(model: Any) -> dict[str, torch.Tensor]:
    if not isinstance(model, torch.nn.Module):
        return {}
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _check_names(where: str, asked: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    def named(names: list[str]) -> str:
        return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")

    missing, extra = [n for n in asked if n not in found], [n for n in found if n not in asked]
    if missing or extra:
        parts = [f"it lacks {named(missing)}"] * bool(missing) + [f"it alone has {named(extra)}"] * bool(extra)
        raise SpecError(f"{where}: parameters and buffers must have the model's names, but {' and '.join(parts)}")
    for name, tensor in asked.items():
        wanted, got = (f"{t.dtype} {tuple(t.shape)}".removeprefix("torch.") for t in (tensor, found[name]))
        if wanted != got:
            raise SpecError(f"{where}: {name} is {got}, and the model's is {wanted}")


def _take_over(made: torch.nn.Module, model: torch.nn.Module) -> None:
    with torch.no_grad():
        state = _state(model)
        for name, tensor in _state(made).items():
            tensor.copy_(state[name])
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(state[name].requires_grad)
    parts: dict[str, Callable[..., Any]] = dict(model.named_modules())
    made.train(model.training)
    for name, part in made.named_modules():
        part.training = getattr(parts.get(name), "training", part.training)
    first = next(iter(state.values()), None)
    if first is not None:
        made.to(first.device)

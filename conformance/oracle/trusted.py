"""Builds the trusted implementation of a model, with the model's own weights and buffers."""

from __future__ import annotations

from typing import Any

import torch

from conformance.oracle import evaluation, inputs
from zoo.case import SpecError


def adopt_state(trusted: Any, model: Any, name: str) -> Any:
    """Copy parameters, buffers and the training flags of a model into its trusted implementation.

    Args:
        trusted: what the spec's reference built, a module or a function.
        model: the model, on the same device.
        name: name of the model, for messages.

    Returns:
        The trusted implementation.

    Raises:
        SpecError: the two do not have the same parameters and buffers.
    """
    ours, theirs = evaluation.state_of(model), evaluation.state_of(trusted)
    for whose, names in (("the model", theirs.keys() - ours), ("its reference", ours.keys() - theirs)):
        if names:
            listed = ", ".join(sorted(names))
            raise SpecError(f"{name}: {whose} has no {listed}; a trusted reference has the model's own names")
    for key, tensor in theirs.items():
        if tensor.shape != ours[key].shape or inputs.widest(tensor.dtype) != inputs.widest(ours[key].dtype):
            found, wanted = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, ours[key]))
            raise SpecError(f"{name}: {key} is {found} in the reference, {wanted} in the model")
    evaluation.reset(trusted, ours)
    if isinstance(trusted, torch.nn.Module) and isinstance(model, torch.nn.Module):
        modules = dict(model.named_modules())
        for path, module in trusted.named_modules():
            module.training = modules[path].training if path in modules else model.training
    return trusted

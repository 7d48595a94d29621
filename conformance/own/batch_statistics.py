"""Gives new batch norms the statistics of a batch, as training does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from conformance.float64.copies import copied
from zoo import internals


def settle(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    """Set the running statistics of a model's batch norms to those of one batch, and return the model.

    A new batch norm has mean 0 and variance 1. So in eval mode it does not normalise, and forty layers deep the
    activations are too small for float16. The batch runs in float64: any number of threads gives the same float32.

    Args:
        model: a model of float32; its dropout stays off for this.
        batch: its input, float32.
    """
    norms = _with_statistics(model)
    if not norms:
        return model
    rehearsal = copied(model).double().eval()
    rehearsed = _with_statistics(rehearsal)
    for norm in rehearsed:
        norm.train().momentum = 1.0  # the statistics are those of this batch alone
    with torch.no_grad():
        rehearsal(batch.double())
    for norm, known in zip(norms, rehearsed, strict=True):
        norm.load_state_dict(known.state_dict())
    return model


def _with_statistics(model: nn.Module) -> list[Any]:
    """The batch norms that keep running statistics."""
    norms = [module for module in model.modules() if isinstance(module, internals.batch_norm)]
    return [norm for norm in norms if norm.track_running_stats]

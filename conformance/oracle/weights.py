"""Reads and restores the parameters and buffers of a model; a plain function has none."""

from __future__ import annotations

from typing import Any

import torch


def parameters_of(owner: Any) -> dict[str, torch.Tensor]:
    """The parameters of a module, by name."""
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}


def buffers_of(owner: Any) -> dict[str, torch.Tensor]:
    """The buffers of a module, by name."""
    return dict(owner.named_buffers()) if isinstance(owner, torch.nn.Module) else {}


def reset(owner: Any, state: dict[str, torch.Tensor]) -> None:
    """Restore parameters and buffers from `state_of`, in place, so that nothing recompiles."""
    with torch.no_grad():
        for name, parameter in parameters_of(owner).items():
            parameter.copy_(state[name])
    reset_buffers(owner, state)


def reset_buffers(owner: Any, state: dict[str, torch.Tensor]) -> None:
    """Restore the buffers in place, hidden from autograd, because batch norm saves them for its backward."""
    for name, buffer in buffers_of(owner).items():
        buffer.data.copy_(state[name])


def state_of(owner: Any) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers of a module, by name."""
    return {name: tensor.detach().clone() for name, tensor in (parameters_of(owner) | buffers_of(owner)).items()}

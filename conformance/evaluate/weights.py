"""Reads and restores the parameters and buffers of a model; a plain function has none."""

from __future__ import annotations

from typing import Any

import torch

from zoo import internals
from zoo.case import SpecError


def parameters_of(owner: Any) -> dict[str, torch.Tensor]:
    """The parameters of a module, by name."""
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}


def buffers_of(owner: Any) -> dict[str, torch.Tensor]:
    """The buffers of a module, by name."""
    return dict(owner.named_buffers()) if isinstance(owner, torch.nn.Module) else {}


def reset(owner: Any, state: dict[str, torch.Tensor], *, tables: bool = False) -> None:
    """Restore parameters and buffers from `state_of`, in place, so that nothing recompiles, and drop each `.grad`.

    Args:
        owner: the module, or a plain function.
        state: from `state_of`.
        tables: restore the buffers too that are not persistent.

    Raises:
        SpecError: a parameter was made since then.
    """
    with torch.no_grad():
        for name, parameter in parameters_of(owner).items():
            if name not in state:
                raise SpecError(f"a call makes the parameter {name}; make it in __init__, or use a lazy module")
            parameter.copy_(state[name])
            parameter.grad = None
    reset_buffers(owner, state, tables=tables)


def reset_buffers(owner: Any, state: dict[str, torch.Tensor], *, tables: bool = False) -> None:
    """Restore the buffers in place, hidden from autograd, because batch norm saves them for its backward.

    One that was registered since then stays. So does one that is not persistent, unless asked for: the model may know
    in another way that it has filled that table.
    """
    kept = set() if tables else not_persistent(owner)
    for name, buffer in buffers_of(owner).items():
        if name in kept or name not in state:
            continue
        if buffer.shape == state[name].shape:
            buffer.data.copy_(state[name])
        else:
            buffer.data = state[name].clone()


def not_persistent(owner: Any) -> set[str]:
    """The names of the buffers of a module that are not persistent; those of a ScriptModule are not known."""
    modules = owner.named_modules() if isinstance(owner, torch.nn.Module) else ()
    named = ((path, vars(module).get(internals.TRANSIENT_BUFFERS, ())) for path, module in modules)
    return {f"{path}.{name}".lstrip(".") for path, names in named for name in names}


def state_of(owner: Any) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers of a module, by name."""
    return {name: tensor.detach().clone() for name, tensor in (parameters_of(owner) | buffers_of(owner)).items()}

"""Reads and restores the parameters and buffers of a model; a plain function has none."""

from __future__ import annotations

from typing import Any

import torch

from zoo.case import SpecError

PLAIN = (bool, int, float, complex, str)


def parameters_of(owner: Any) -> dict[str, torch.Tensor]:
    """The parameters of a module, by name."""
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}


def buffers_of(owner: Any) -> dict[str, torch.Tensor]:
    """The buffers of a module, by name."""
    return dict(owner.named_buffers()) if isinstance(owner, torch.nn.Module) else {}


class State(dict[str, torch.Tensor]):
    """The parameters and buffers of a module by name, and the plain values among its attributes.

    Attributes:
        plain: the dict of attributes, the name and the value of each, such as the number of calls so far.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], owner: Any) -> None:
        super().__init__(tensors)
        modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
        members = [vars(module) for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        self.plain = [(own, name, own[name]) for own in members for name in own if type(own[name]) in PLAIN]


def reset(owner: Any, state: dict[str, torch.Tensor]) -> None:
    """Restore parameters, buffers and plain attributes from `state_of`, in place, so that nothing recompiles.

    Raises:
        SpecError: a parameter was made since then.
    """
    for members, name, value in state.plain if isinstance(state, State) else ():
        members[name] = value
    with torch.no_grad():
        for name, parameter in parameters_of(owner).items():
            if name not in state:
                raise SpecError(f"a call makes the parameter {name}; make it in __init__, or use a lazy module")
            parameter.copy_(state[name])
    reset_buffers(owner, state)


def reset_buffers(owner: Any, state: dict[str, torch.Tensor]) -> None:
    """Restore the buffers in place, hidden from autograd, because batch norm saves them for its backward.

    One that was registered since then, such as a table that the first call makes, stays.
    """
    for name, buffer in buffers_of(owner).items():
        if name in state and buffer.shape == state[name].shape:
            buffer.data.copy_(state[name])
        elif name in state:
            buffer.data = state[name].clone()


def state_of(owner: Any) -> State:
    """Copies of the parameters and buffers of a module, by name, and its plain attributes."""
    tensors = parameters_of(owner) | buffers_of(owner)
    return State({name: tensor.detach().clone() for name, tensor in tensors.items()}, owner)

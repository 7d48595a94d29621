"""Builds the callable of exported cells: the programs that `torch.export` makes, one for each signature of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from conformance.axes import Prepared
from conformance.errors import NotProvenError
from zoo import internals


class _Called(nn.Module):
    """A function as a module, because `torch.export` takes nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def export(model: Any) -> Prepared:
    """The model as exported programs, which are run and differentiated with the model's own parameters and buffers.

    A program is made at the first call of each signature (shapes, dtypes, strides, values that are no tensors), under
    the autocast of that call.

    Args:
        model: the model to export.

    Raises:
        TypeError: the model is a ScriptModule, which `torch.export` does not take.
    """
    module = exportable(model)
    programs: dict[Any, nn.Module] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        signature = signature_of(args, kwargs)
        if signature not in programs:
            if internals.current_transform() is not None:
                raise RuntimeError("torch.export makes no program inside torch.vmap, and there is none for this call")
            programs[signature] = torch.export.export(module, args, kwargs, strict=False).module()
        return programs[signature](*args, **kwargs)

    def proof() -> dict[str, Any]:
        graphs = [program.graph for program in programs.values() if isinstance(program, GraphModule)]
        if not graphs or len(graphs) < len(programs):
            raise NotProvenError(f"of {len(programs)} programs {len(graphs)} are graphs, so a call may have run Python")
        ops = sum(node.op == "call_function" for graph in graphs for node in graph.nodes)
        return {"programs": len(graphs), "ops": ops}

    return Prepared(call, proof, model)


def exportable(model: Any) -> nn.Module:
    """The model as a module, which is all that `torch.export` takes.

    Raises:
        TypeError: it is a ScriptModule.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"torch.export takes no {type(model).__name__}; build the eager module, or declare this")
    return model if isinstance(model, nn.Module) else _Called(model)


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a program is specialised to: shapes, dtypes and strides of tensors, and all other values."""
    leaves, structure = internals.tree_flatten((args, kwargs))
    return str(structure), *map(_describe_leaf, leaves)


def _describe_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.device, tuple(leaf.shape), leaf.stride()
    return type(leaf), repr(leaf)

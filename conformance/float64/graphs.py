"""Widens models that are graphs already: scripted, traced or exported ones, whose casts no Python code can see."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from conformance.evaluate import custom_ops, inputs
from zoo import internals


class WidenedOps(custom_ops.OpMode):
    """Gives every op float64 in place of narrower dtypes and tensors, below TorchScript and exported graphs."""

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op on widened arguments. Views, and tensors that the op writes, stay as they are.

        So do cotangents: they are drawn where `Widened` does not apply either.
        """
        if func.is_view or not internals.is_torch_function_enabled():
            return func(*args, **kwargs)
        written = custom_ops.written_names(func)
        names = [argument.name for argument in internals.schema_of(func).arguments]
        wide_args = [a if name in written else _wide(a) for name, a in zip(names, args, strict=False)]
        wide_kwargs = {name: value if name in written else _wide(value) for name, value in kwargs.items()}
        return func(*wide_args, **wide_kwargs)


class NarrowWatch(custom_ops.OpMode):
    """Notes whether any op gives a floating tensor that is narrower than float64, or draws from a given generator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.draws = False

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op as it was called; `Widened` would widen a call that comes from here."""
        with internals.DisableTorchFunction():
            result = func(*args, **kwargs)
        self.draws |= kwargs.get("generator") is not None
        self.seen |= any(
            inputs.is_rounded(t) and t.dtype != inputs.widest(t.dtype) for t in custom_ops.leaves_of(result)
        )
        return result


def has_graph(model: Any) -> bool:
    """Whether a model, or a module inside it, is a graph of TorchScript or of `torch.export`."""
    kinds = (torch.jit.ScriptModule, torch.fx.GraphModule)
    if isinstance(model, torch.nn.Module):
        return any(isinstance(module, kinds) for module in model.modules())
    return isinstance(model, torch.jit.ScriptFunction)


def widen_constants(model: torch.nn.Module) -> None:
    """Give the constants of TorchScript's graphs float64, in place; freezing a model makes constants of its weights.

    Call it before the model has run: TorchScript keeps what it has made of a graph.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            for graph in internals.graphs_of(module):
                _widen_nodes(graph)


def _widen_nodes(block: Any) -> None:
    for node in block.nodes():
        if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
            node.t_("value", _wide(node.t("value")))
        for inner in node.blocks():
            _widen_nodes(inner)


def _wide(tree: Any) -> Any:
    def wide(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return inputs.widest(leaf)
        if inputs.is_rounded(leaf) and leaf.dtype != inputs.widest(leaf.dtype):
            return leaf.to(inputs.widest(leaf.dtype))
        return leaf

    return custom_ops.map_leaves(wide, tree)


# Tells whether Python code calls TorchScript, whose first calls may round differently from later ones.

SCRIPTS = (torch.jit.ScriptFunction, torch.ScriptMethod)


@contextlib.contextmanager
def note_scripts() -> Iterator[set[type]]:
    """A context that tells which kinds of scripts were called in it. What compiled code has taken in is not called."""
    called: set[type] = set()

    def watched(kind: type) -> Any:
        plain = kind.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(kind)
            return plain(self, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for kind in SCRIPTS:
            stack.enter_context(mock.patch.object(kind, "__call__", watched(kind)))
        yield called

"""Runs `torch.cond` as a plain branch: torch's own compiles both branches, and cannot do so while modes are active."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from zoo import internals

FUNCTION = getattr(torch.ops.higher_order, "cond", None)  # in the graph of an exported program


class _Linked(torch.autograd.Function):
    """A tensor, and zeros as the gradients of others."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.others = others
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *gradients, *map(torch.zeros_like, ctx.others)


def plain_branches() -> contextlib.AbstractContextManager[Any]:
    """A context in which `torch.cond` is `branch`."""
    return mock.patch.object(torch, "cond", branch) if hasattr(torch, "cond") else contextlib.nullcontext()


def branch(
    condition: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """What `torch.cond` returns. What only the other branch uses has a gradient of zeros, as torch's has.

    Args:
        condition: a boolean, or a tensor with one.
        if_true: the branch that it takes if the condition is true.
        if_false: the other.
        operands: their arguments.
    """
    taken, other = (if_true, if_false) if condition else (if_false, if_true)
    found, structure = internals.tree_flatten(taken(*operands))
    leaves = _leaves([leaf for leaf in internals.tree_leaves(other(*operands)) if isinstance(leaf, torch.Tensor)])
    for number, leaf in enumerate(found):
        if leaves and isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            found[number] = _Linked.apply(leaf, *leaves)  # type: ignore[no-untyped-call]
            break
    return internals.tree_unflatten(found, structure)


def _leaves(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs and parameters on which some tensors depend, as autograd knows it."""
    nodes: list[Any] = [output.grad_fn for output in outputs]
    seen, leaves = set(nodes), [output for output in outputs if output.requires_grad and output.is_leaf]
    for node in nodes:  # it grows
        leaves += [node.variable] if hasattr(node, "variable") else []
        new = [following for following, _ in getattr(node, "next_functions", ()) if following not in seen]
        seen.update(new)
        nodes += new
    return list({id(leaf): leaf for leaf in leaves}.values())

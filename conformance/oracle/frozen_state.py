"""Holds the state that forward updates, such as running averages, at the values of one unperturbed run.

Autograd takes such state as a constant, and finite differences see that it depends on the inputs and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from conformance.oracle.custom_ops import OpMode, written_names
from conformance.oracle.rounding import BATCH_NORMS


class FrozenState(OpMode):
    """While active, each op that writes the state gives the value that it gave in the recorded run.

    Args:
        values: what each of these ops gave, by its number.
    """

    def __init__(self, values: dict[int, tuple[str, list[torch.Tensor]]]) -> None:
        super().__init__()
        self._values, self._number = values, -1

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it writes the state, overwrite what it gave."""
        result = func(*args, **kwargs)
        self._number += 1
        name, values = self._values.get(self._number, ("", []))
        if name == func.name():
            for tensor, value in zip(_given(func, args, kwargs, result), values, strict=True):
                tensor.copy_(value)
        return result


class _Record(OpMode):
    """Notes the tensors that each op gives: its results and what it writes. It keeps their memory from being reused.

    Args:
        wanted: numbers of the ops whose values are copied.
    """

    def __init__(self, wanted: Iterable[int] = ()) -> None:
        super().__init__()
        self.given: list[list[torch.Tensor]] = []
        self.values: dict[int, tuple[str, list[torch.Tensor]]] = {}
        self._wanted = frozenset(wanted)

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        given = _given(func, args, kwargs, result)
        if len(self.given) in self._wanted:
            self.values[len(self.given)] = (func.name(), [tensor.clone() for tensor in given])
        self.given.append(given)
        return result


def freeze(
    reset: Callable[[], None], forward: Callable[[], Any], state: Callable[[], list[torch.Tensor]]
) -> Callable[[], FrozenState] | None:
    """Record which ops of a forward write the state.

    Args:
        reset: restores the state before each run.
        forward: runs the model once.
        state: returns the tensors of the state, which forward may replace by others.

    Returns:
        A function that makes the mode for one run; None if forward does not write the state.
    """
    reset()
    held = state()
    with _Record() as first:
        forward()
    homes = {_home(tensor) for tensor in (*held, *state())}
    writes = [i for i, given in enumerate(first.given) if any(_home(tensor) in homes for tensor in given)]
    if not writes:
        return None
    reset()
    with _Record(writes) as second:
        forward()
    return lambda: FrozenState(second.values)


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """The tensors that an op writes or returns; none of a view. The schema of batch norms does not name theirs."""
    if func.is_view:
        return []
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 -- the public handle on them
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    written = [arguments.get(name) for name in written_names(func)]
    if func.overloadpacket.__name__ in BATCH_NORMS:
        written += args[3:5]
    return [t for t in pytree.tree_leaves([written, result]) if isinstance(t, torch.Tensor)]  # foreach ops write lists


def _home(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- the identity of the memory, also if it is empty

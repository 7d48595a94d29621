"""Holds what autograd takes as a constant at the values of one unperturbed run, so finite differences do so too.

That is the state that forward updates, such as running averages, and what forward takes out of autograd: the results of
`detach` and `item`, and of ops under `no_grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.evaluate.custom_ops import OpMode, written_names, written_tensors
from conformance.evaluate.memory_sharing import home
from conformance.perturb.gradient_flow import applications_watched
from zoo import internals


@dataclass
class _Held:
    """What ops gave in the recorded run, with the name of the op, by its number.

    Attributes:
        written: what those gave that write the state, or something under `no_grad`; None for what is free.
        results: the results of those that take them out of autograd.
    """

    written: dict[int, tuple[str, list[torch.Tensor | None]]] = field(default_factory=dict)
    results: dict[int, tuple[str, Any]] = field(default_factory=dict)


class FrozenState(OpMode):
    """While active, each op that was held gives what it gave in the recorded run.

    Args:
        held: what was held.
    """

    def __init__(self, held: _Held) -> None:
        super().__init__()
        self._held, self._number = held, -1

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op; if it is held, overwrite what it gave."""
        result = func(*args, **kwargs)
        self._number += 1
        name, kept = self._held.results.get(self._number, ("", None))
        if name == func.name():
            return _copy(kept)
        name, values = self._held.written.get(self._number, ("", []))
        if name == func.name():
            for tensor, value in zip(_given(func, args, kwargs, result), values, strict=True):
                if value is not None:
                    tensor.copy_(value)
        return result


class _Record(OpMode):
    """Notes the memory of the tensors that each op gives: its results and what it writes. None of it is reused.

    It keeps no tensor: an op that writes to a tensor that somebody else holds may call another op more.

    Args:
        wanted: by number and name of an op whose values are held, whether each of the tensors that it gives is.
        applying: also hold what is taken out of autograd, unless this says that a custom Function is being applied.
    """

    def __init__(
        self,
        wanted: Mapping[tuple[int, str], Sequence[bool]] | None = None,
        applying: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self.given: list[tuple[str, list[torch.UntypedStorage]]] = []
        self.held = _Held()
        self._wanted, self._applying = wanted or {}, applying

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stops = self._applying is not None and _stops(func, args, kwargs) and not self._applying()
        result = func(*args, **kwargs)
        given, number, name = _given(func, args, kwargs, result), len(self.given), func.name()
        wanted = self._wanted.get((number, name))
        if wanted is None and stops and written_names(func):
            wanted = [not tensor.requires_grad for tensor in given]
        if wanted is not None:
            values = [tensor.clone() if held else None for tensor, held in zip(given, wanted, strict=True)]
            self.held.written[number] = name, values
        elif stops:
            self.held.results[number] = name, _copy(result)
        self.given.append((name, [tensor.untyped_storage() for tensor in given]))
        return result


def _stops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an op takes a tensor out of autograd, unless a custom Function gives it a gradient all the same."""
    if torch.is_grad_enabled() and func not in (torch.ops.aten.detach.default, internals.item_op):
        return False
    tensors = [leaf for leaf in internals.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return any(tensor.requires_grad for tensor in tensors)


def _copy(result: Any) -> Any:
    return internals.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, result)


def freeze(
    reset: Callable[[], None], forward: Callable[[], Any], state: Callable[[], list[torch.Tensor]], *, stops: bool
) -> Callable[[], FrozenState] | None:
    """Record which ops of a forward write the state, and what they give.

    Args:
        reset: restores the state before each run.
        forward: runs the model once.
        state: returns the tensors of the state, which forward may replace by others.
        stops: also hold what forward takes out of autograd.

    Returns:
        A function that makes the mode for one run; None if there is nothing to hold.
    """
    reset()
    before = [tensor.untyped_storage() for tensor in state()]
    with _Record() as first:
        forward()
    homes = {home(memory) for memory in (*before, *(tensor.untyped_storage() for tensor in state()))}
    given = {(number, name): [home(m) in homes for m in memory] for number, (name, memory) in enumerate(first.given)}
    writes = {op: ours for op, ours in given.items() if any(ours)}
    if not writes and not stops:
        return None
    reset()
    with applications_watched() as applying, _Record(writes, applying if stops else None) as second:
        forward()
    if not second.held.written and not second.held.results:
        return None
    return lambda: FrozenState(second.held)


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """The tensors that an op writes or returns; none of a view."""
    if func.is_view:
        return []
    returned = [t for t in internals.tree_leaves(result) if isinstance(t, torch.Tensor)]
    return [*written_tensors(func, args, kwargs), *returned]

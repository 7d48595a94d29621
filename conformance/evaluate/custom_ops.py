"""Defines a dispatch mode that sees the ops inside operators written in Python, and inside composite ops."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from zoo import internals

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
PLAIN = torch.Tensor.__torch_dispatch__  # of what is no wrapper


class Unwatched:
    """A context for a mode's own arithmetic, which no other mode sees: nothing perturbs, notes or widens it.

    It is entered for each op, so it is no generator: those take twice as long.
    """

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._dispatch = internals.DisableTorchDispatch()
        self._function = internals.DisableTorchFunction()
        self._dispatch.__enter__()
        self._function.__enter__()

    def __exit__(self, *problem: object) -> None:
        self._function.__exit__(*problem)
        self._dispatch.__exit__(*problem)


class OpMode(internals.Unwrapped, internals.TorchDispatchMode):  # type: ignore[misc]
    """Base of the modes that watch or change ops. A subclass defines `run_op`."""

    def __enter__(self) -> "Self":
        if internals.COMPILER in sys.modules:
            _keep_compiler_out()
        super().__enter__()
        return self

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and return its result."""
        return func(*args, **kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(kind.__torch_dispatch__ is not PLAIN for kind in types):
            return NotImplemented  # a wrapper, such as a nested tensor, says what runs; its ops come back here
        if _is_meta(args):  # torch asks for shapes alone, as forward-mode derivatives do
            return func(*args, **(kwargs or {}))
        inner = _implementation(func)
        if inner is None:
            return self.run_op(func, args, kwargs or {})
        with self:
            return inner(*args, **(kwargs or {}))


@cache
def _keep_compiler_out() -> None:
    """Let the compiler look into no mode, from now on. It could where a model compiles a part of itself."""
    OpMode.__torch_dispatch__ = torch.compiler.disable(OpMode.__torch_dispatch__)  # type: ignore[method-assign]


@cache
def written_names(func: Any) -> tuple[str, ...]:
    """Names of the arguments that an ATen op writes, by its schema and in its order."""
    schema = internals.schema_of(func).arguments
    return tuple(a.name for a in schema if a.alias_info is not None and a.alias_info.is_write)


def by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an ATen op, by the names of its schema."""
    names = (argument.name for argument in internals.schema_of(func).arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an ATen op writes. The schema of batch norms does not name theirs."""
    names = written_names(func)
    given = by_name(func, args, kwargs) if names else {}
    written = [given.get(name) for name in names]
    if func.overloadpacket.__name__ in BATCH_NORMS:
        written += args[3:5]
    return [t for t in leaves_of(written) if isinstance(t, torch.Tensor)]  # foreach ops write lists


def _is_meta(args: tuple[Any, ...]) -> bool:
    """Whether an op computes with tensors that have no numbers, by its first argument."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, torch.Tensor) and first.is_meta


def _implementation(func: Any) -> Callable[..., Any] | None:
    """What runs in the place of an op: the Python function of an operator, or a composite op's own ops; else None."""
    definition = internals.operator_definitions.get(internals.schema_of(func).name)
    if definition is not None:
        found: Callable[..., Any] = internals.implementation_of(definition)
        return found
    return func.decompose if _is_composite(func) else None


@cache
def _is_composite(func: Any) -> bool:
    """Whether torch composes the op of others. Autograd does that before a mode sees it, but not inside an operator."""
    try:
        return bool(internals.has_kernel(func.name(), "CompositeImplicitAutograd"))
    except RuntimeError:  # the dispatcher does not know it, such as `sym_size` of a nested tensor
        return False


# Maps a function over the arguments of an op, which nest lists, tuples and dicts. pytree takes ten times as long.


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with every leaf replaced."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    kind = type(tree)
    if kind is list or isinstance(tree, tuple):
        mapped = [map_leaves(function, item) for item in tree]
        return kind(*mapped) if hasattr(kind, "_fields") else kind(mapped)
    if kind is dict:
        return {key: map_leaves(function, item) for key, item in tree.items()}
    return function(tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    """The leaves of the tree, in order."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves_of(item)
    elif type(tree) is dict:
        for item in tree.values():
            yield from leaves_of(item)
    else:
        yield tree

"""Wraps what TorchScript cannot take as it is, an operator or a custom Function, into a Python function.

TorchScript reads sources, so the wrapper has one: a fixed number of parameters, with the types of the inputs.
"""

from __future__ import annotations

import inspect
import linecache
import typing
import zlib
from collections.abc import Callable
from typing import Any

import torch

from zoo import internals
from zoo.case import Call, Case

TYPES = {bool: "bool", int: "int", float: "float", str: "str", torch.Tensor: "Tensor", torch.nn.Parameter: "Tensor"}
TYPING = {name: getattr(typing, name) for name in ("List", "Optional", "Tuple")}  # what the sources name


def wrap(target: Any, case: Case) -> Callable[..., Any]:
    """A function that calls the target with the arguments of a case.

    Args:
        target: an operator, or a subclass of `autograd.Function`, which is called by its `apply`.
        case: its inputs.
    """
    call = _call(case)
    parameters, passed = _parameters(call, _names(target, call))
    is_function = isinstance(target, type)
    called = target.apply if is_function else target
    function = _make("model", f"def model({parameters}):\n    return target({passed})\n", {"target": called})
    if is_operator(target):
        function.operator = target  # type: ignore[attr-defined]  # for opcheck
    return function


def make_ignored(function: type[torch.autograd.Function], case: Case) -> Any:
    """The scripted form of a custom Function: a script that calls it in Python, as `torch.jit.ignore` does.

    TorchScript has no other form of it in every version of torch.
    """
    call = _call(case)
    parameters, passed = _parameters(call, _names(function, call))
    given = [t.detach() if isinstance(t, torch.Tensor) else t for t in call.args]
    returned = _type_of(function.apply(*given, **call.kwargs))
    source = (
        f"@torch.jit.ignore\ndef call({parameters}) -> {returned}:\n    return target({passed})\n\n"
        f"def model({parameters}) -> {returned}:\n    return call({passed})\n"
    )
    return torch.jit.script(_make("model", source, {"target": function.apply}))


def is_operator(target: Any) -> bool:
    """Whether it is an operator, or one overload of it."""
    return isinstance(target, (internals.OpOverload, internals.OpOverloadPacket))


def _call(case: Case) -> Call:
    return case.first or case.draw(torch.Generator().manual_seed(0))


def _names(target: Any, call: Call) -> list[str]:
    """Names for the positional arguments: those of the target, as far as it has a signature."""
    is_function = isinstance(target, type)
    try:
        known = inspect.signature(target.forward if is_function else target).parameters.values()
        names = [p.name for p in known if p.kind == p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        names = []
    if is_function and target.setup_context is torch.autograd.Function.setup_context:
        names = names[1:]  # without the context
    if len(names) < len(call.args):
        names = [f"input{i}" for i in range(len(call.args))]
    return names[: len(call.args)]


def _parameters(call: Call, names: list[str]) -> tuple[str, str]:
    """The parameters of the wrapper, and the arguments that it passes on."""
    typed = [_annotate(name, value) for name, value in (*zip(names, call.args, strict=True), *call.kwargs.items())]
    return ", ".join(typed), ", ".join([*names, *(f"{name}={name}" for name in call.kwargs)])


def _annotate(name: str, value: Any) -> str:
    return f"{name}: {_type_of(value)}" if _type_of(value) else name


def _type_of(value: Any) -> str:
    if isinstance(value, (tuple, list)) and value:
        parts = [_type_of(part) for part in value]
        if isinstance(value, tuple):
            return f"Tuple[{', '.join(parts)}]" if all(parts) else ""
        return f"List[{parts[0]}]" if len(set(parts)) == 1 and parts[0] else ""
    return (
        "Optional[Tensor]"
        if value is None
        else TYPES.get(type(value), "Tensor" if isinstance(value, torch.Tensor) else "")
    )


def _make(name: str, source: str, known: dict[str, Any]) -> Callable[..., Any]:
    """The function of that name in a source, which `inspect` can find."""
    file = f"<wrapper {zlib.crc32(source.encode()):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"__name__": __name__, "torch": torch, "Tensor": torch.Tensor, **TYPING, **known}
    exec(compile(source, file, "exec", dont_inherit=True), scope)  # noqa: S102 -- a source of two lines, made above
    function: Callable[..., Any] = scope[name]
    return function

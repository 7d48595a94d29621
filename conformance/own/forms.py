"""Tells what a thing is (module, class, function, operator …), and builds its eager and its scripted form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from conformance.axes import MODES
from conformance.errors import UsageError
from conformance.float64.copies import copy_model
from conformance.one_line import describe_error
from conformance.own.wrapped import is_operator, make_ignored, wrap
from zoo.case import Case

OF_SCRIPTS = tuple(name for name, mode in MODES.items() if mode.prepare is None and name != "scripted")
OF_PROGRAMS = ("scripted", "fp16", "bf16")  # the dtypes are written into the program


@dataclass(frozen=True)
class Forms:
    """A model in the forms that a spec needs.

    Attributes:
        kind: what it is, in words.
        build: returns the eager form.
        scripted: returns the scripted form; None: what `torch.jit.script` makes of the eager one.
        without: the built-in modes and precisions that it does not exist in.
    """

    kind: str
    build: Callable[[], Any]
    scripted: Callable[[], Any] | None = None
    without: tuple[str, ...] = ()


def forms_of(fetch: Callable[[], Any], case: Case) -> Forms:  # noqa: PLR0911 -- one for each kind
    """The forms of a thing.

    Args:
        fetch: returns the thing.
        case: its inputs, from which a wrapper takes names and types.

    Raises:
        UsageError: it cannot be called, or cannot be built without arguments.
    """
    thing = fetch()
    if isinstance(thing, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return Forms("TorchScript", fetch, fetch, OF_SCRIPTS)
    if isinstance(thing, torch.export.ExportedProgram):
        return Forms("an exported program", lambda: fetch().module(), without=OF_PROGRAMS)
    if isinstance(thing, nn.Module):
        return Forms(f"a module {type(thing).__name__}", lambda: copy_model(fetch()))
    if isinstance(thing, type):
        return _of_class(thing, case)
    if is_operator(thing) or inspect.isbuiltin(thing):
        called = getattr(thing, "overloadpacket", thing)  # TorchScript takes no overload; it chooses one by the types
        return Forms("an operator", lambda: wrap(called, case))
    if not callable(thing):
        raise UsageError(f"a {type(thing).__name__} is no model; want a module, a class, a function or an operator")
    if _builds(thing):
        return Forms(f"the module that {thing.__name__} builds", thing)
    return Forms("a function", lambda: thing)


def _of_class(thing: type, case: Case) -> Forms:
    if issubclass(thing, torch.autograd.Function):
        return Forms(f"a Function {thing.__name__}", lambda: wrap(thing, case), partial(make_ignored, thing, case))
    try:
        thing()
    except TypeError as problem:
        raise UsageError(
            f"{thing.__name__} cannot be built without arguments ({describe_error(problem)}); give an instance, or a "
            "function that builds one"
        ) from problem
    return Forms(f"a module {thing.__name__}", thing)


def _builds(function: Callable[..., Any]) -> bool:
    """Whether a function needs no arguments and returns a module, so that it builds the model."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(p.default is p.empty and p.kind not in variable for p in parameters):
        return False
    try:
        return isinstance(function(), nn.Module)
    except Exception:  # noqa: BLE001 -- then it is the model itself
        return False

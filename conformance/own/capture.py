"""Puts a model and the arguments of one call where other processes find them."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from conformance.errors import UsageError
from conformance.one_line import named
from conformance.own import parametrized
from conformance.own.definitions import MAIN, Definitions, pickler
from conformance.own.wrapped import is_operator
from conformance.records.own_model import TRAINING, OwnModel, name_from
from conformance.records.plan import SpecLocation
from zoo import internals
from zoo.case import Call
from zoo.convention import Convention
from zoo.expect import Expect

# Pickles parameters with their hooks, which torch leaves out.


def reduced(value: Any) -> Any:
    """How to pickle a parameter with hooks, as `pickle.Pickler.reducer_override` asks; else NotImplemented."""
    if not isinstance(value, nn.Parameter):
        return NotImplemented
    hooks = {name: OrderedDict(getattr(value, name)) for name in internals.HOOKS_OF_TENSORS if getattr(value, name)}
    if not hooks:
        return NotImplemented
    rebuild, arguments = value.__reduce_ex__(2)[:2]
    return rebuild, arguments, hooks, None, None, hook


def hook(parameter: nn.Parameter, hooks: dict[str, OrderedDict[int, Any]]) -> None:
    """Give a parameter hooks, by the name of the attribute that holds them."""
    for name, some in hooks.items():
        setattr(parameter, name, some)


ELSE = 'Define it in a module, or name a function that builds it ("package.module:build")'
MODEL, CALL, DEFINITIONS = "model.pt", "call.pt", "definitions.py"


def captured(
    target: Any, call: Call, folder: Path, *, train: bool | None = None, expect: tuple[Expect | Convention, ...] = ()
) -> SpecLocation:
    """The location of a model, which any process can read.

    Args:
        target: the model: see `conformance.check`; None: it has a place of its own, and only the call is stored.
        call: the arguments of one call.
        folder: where to store what no process can import.
        train: whether to put it into train mode; None for its own.
        expect: the declared divergences, and the gradients that are not the derivative by design.

    Raises:
        UsageError: something cannot be stored; the message names it.
    """
    if train not in TRAINING:
        raise UsageError(f"check: train must be True, False or None, got {train!r}")
    definitions = Definitions()
    store((call, expect), folder / CALL, definitions, "the inputs")
    own = OwnModel(call=str(folder / CALL), training=TRAINING[train])
    location = SpecLocation(own=own) if target is None else _located(target, own, folder / MODEL, definitions)
    if definitions.lines:
        path = folder / DEFINITIONS
        path.write_text(definitions.text(), encoding="utf-8")
        location = replace(location, own=replace(location.own or own, definitions=str(path)))
    return location


def _located(target: Any, own: OwnModel, path: Path, definitions: Definitions) -> SpecLocation:
    if isinstance(target, torch.library.CustomOpDef):  # type: ignore[attr-defined]
        target = internals.overload_of_definition(target)
    if is_operator(target):
        name = str(target).replace("::", ".").removesuffix(".default")
        _register(name, definitions)
        return SpecLocation("torch", own=replace(own, name=name_from(name), thing=f"ops.{name}"))
    own = replace(own, name=name_from(_name_of(target)))
    if isinstance(target, torch.export.ExportedProgram):
        path = path.with_suffix(".pt2")
        torch.export.save(target, str(path))
    elif isinstance(target, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        torch.jit.save(target, str(path))
    else:
        store(target, path, definitions, f"the model, a {type(target).__name__},")
    return SpecLocation(own=replace(own, saved=str(path)))


def _name_of(target: Any) -> str:
    if isinstance(target, torch.jit.ScriptModule):
        return str(target.original_name)
    of_class = type_before_parametrizations(target) if isinstance(target, nn.Module) else type(target)
    return str(getattr(target, "__name__", of_class.__name__)).strip("<>")


def _register(name: str, definitions: Definitions) -> None:
    """Have other processes register an operator: by the libraries that this one has loaded, and by its module."""
    for library in sorted(torch.ops.loaded_libraries):
        definitions.lines.append(f"__import__('torch').ops.load_library({library!r})")
    known = internals.operator_definitions
    namespace, _, rest = name.partition(".")
    definition = known.get(f"{namespace}::{rest.partition('.')[0]}")
    if definition is None:
        return
    function = internals.implementation_of(definition)
    if function.__module__ == MAIN:
        definitions.add([function.__name__])
    else:
        definitions.lines.append(f"import {function.__module__}")


def store(value: Any, path: Path, definitions: Definitions, what: str, instead: str = ELSE) -> None:
    """Store anything, with the definitions of what it needs of the main module; otherwise by cloudpickle.

    Args:
        value: anything.
        path: the file to write.
        definitions: takes the definitions.
        what: what it is, for the message.
        instead: what to do where it cannot be stored.

    Raises:
        UsageError: neither can.
    """
    names: dict[str, None] = {}
    before = list(definitions.lines)
    try:
        torch.save(value, path, pickle_module=_picklers(pickler(names, _reduced)))
        definitions.add(names)
    except Exception as problem:  # noqa: BLE001 -- whatever is in it may refuse with what it likes
        try:
            import cloudpickle  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 -- it need not be installed
        except ImportError:
            raise UsageError(
                f"check: {what} cannot be sent to another process: {named(problem)}. {instead}, or install cloudpickle"
            ) from problem
        definitions.lines[:] = before
        try:
            torch.save(value, path, pickle_module=_picklers(_with_reduced(cloudpickle.Pickler)))
        except Exception as again:
            raise UsageError(f"check: {what} cannot be pickled: {named(again)}. {instead}") from again


def _picklers(of_class: type[pickle.Pickler]) -> Any:
    """What `torch.save` takes for a module with a pickler."""
    return SimpleNamespace(__name__="pickle", Pickler=of_class)


def _reduced(value: Any) -> Any:
    """How to pickle what torch refuses or leaves a part out of, as `pickle.Pickler.reducer_override` asks."""
    found = reduced(value)
    return parametrized.reduced(value) if found is NotImplemented else found


def _with_reduced(of_class: Any) -> Any:
    """A pickler of a class that overrides reducers itself, which asks `_reduced` first."""

    class Both(of_class):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            found = _reduced(value)
            return super().reducer_override(value) if found is NotImplemented else found

    return Both

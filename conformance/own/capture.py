"""Puts a model and the arguments of one call where other processes find them."""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import linecache
import operator
import os
import pickle
import symtable
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from conformance import axes, errors
from conformance.own import forms, saved, spec
from conformance.records.plan import TRAINING, OtherModel, OwnModel, SpecLocation, name_from
from zoo import Call, Convention, Expect, SpecError, internals

ELSE = 'Define it in a module, or name a function that builds it ("package.module:build")'
SAVES_ITSELF = (torch.export.ExportedProgram, torch.jit.ScriptModule, torch.jit.ScriptFunction)
MODEL, CALL, DEFINITIONS = "model", "call.pt", "definitions.py"


def call_of(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Call:
    """The call of these arguments. Raises UsageError if the keyword arguments are none."""
    try:
        return Call(args, dict(kwargs or {}))
    except (SpecError, TypeError, ValueError) as problem:
        raise errors.UsageError(f"check: kwargs must map names to arguments, got {kwargs!r}") from problem


def locate(target: Any, call: Call, folder: Path, *, reference: Any, candidate: Any, **said: Any) -> SpecLocation:
    """The location of a model, see `capture`; without a name if the target is the name of one that every process finds.

    Raises UsageError if something cannot be stored, or if the model needs inputs and has none.
    """
    target = _of_main(target)
    named = isinstance(target, (str, os.PathLike))
    if not (call.args or call.kwargs or (named and forms.is_named(str(target)))):
        raise errors.UsageError("check: no inputs; give those of one call, as in check(model, x)")
    folder.mkdir()
    others = {"reference": _of_main(reference), "candidate": _of_main(candidate)}
    return capture(None if named else target, call, folder, **others, **said)


def _of_main(thing: Any) -> Any:
    """What a name of the main module, such as "__main__:Net", stands for; anything else as it is."""
    named = isinstance(thing, str) and thing.startswith(f"{MAIN}:")
    return spec.attribute(sys.modules[MAIN], thing.removeprefix(f"{MAIN}:")) if named else thing


def capture(  # noqa: PLR0913 -- what `conformance.check` is told of a model
    target: Any,
    call: Call,
    folder: Path,
    *,
    train: bool | None = None,
    expect: tuple[Expect | Convention, ...] = (),
    reference: Any = None,
    candidate: Any = None,
    trust: bool = False,
) -> SpecLocation:
    """The location of a model, which any process can read; what no process can import is stored in the folder.

    A target, see `conformance.check`, may be None: it has a place of its own, and only the call is stored. `train` is
    the mode to put it into, None its own. `expect` has the declared divergences, and the gradients that are not the
    derivative by design. `reference` and `candidate` are targets too, or None. With `trust`, saved models may run code
    when they are opened. Raises UsageError if something cannot be stored; the message names it.
    """
    if train not in TRAINING:
        raise errors.UsageError(f"check: train must be True, False or None, got {train!r}")
    definitions = Definitions()
    store((call, expect), folder / CALL, definitions, "the inputs")
    others = {"reference": reference, "candidate": candidate}
    held, beside = (_other(role, thing, folder / role, definitions, trust) for role, thing in others.items())
    own = OwnModel(call=str(folder / CALL), training=TRAINING[train], reference=held, candidate=beside, trusted=trust)
    location = SpecLocation(own=own) if target is None else _locate(target, own, folder / MODEL, definitions)
    if definitions.lines:
        path = folder / DEFINITIONS
        path.write_text(definitions.text(), encoding="utf-8")
        location = replace(location, own=replace(location.own or own, definitions=str(path)))
    return location


def _other(role: str, thing: Any, folder: Path, definitions: Definitions, trust: bool) -> OtherModel | None:  # noqa: FBT001
    if thing is None:
        return None
    if isinstance(thing, (str, os.PathLike)):
        return replace(OtherModel.named(os.fspath(thing)), trusted=trust)
    parts = thing.modules() if isinstance(thing, nn.Module) else ()
    compiled = any(internals.compiled_call_of(part) is not None for part in parts)  # in place, which pickle leaves out
    if role == "candidate" and (compiled or forms.unwrap(thing) is not thing):
        wrapped = "is inside torch.compile or data parallelism, and would be judged without it"
        raise errors.UsageError(f"check: the candidate {wrapped}; give what is inside, or register a mode")
    location = _locate(thing, OwnModel(), folder, definitions, f"the {role}")
    own = location.own or OwnModel()
    takes_weights = not isinstance(thing, SAVES_ITSELF)
    return OtherModel(own.saved or f"{location.module}:{own.thing}", takes_weights, own.trusted)


def _locate(
    target: Any, own: OwnModel, folder: Path, definitions: Definitions, what: str = "the model"
) -> SpecLocation:
    """The location of a model; what no process can import is stored in a new folder, in a file of the model's name."""
    if isinstance(target, torch.library.CustomOpDef):  # type: ignore[attr-defined]
        target = internals.overload_of_definition(target)
    if forms.is_operator(target):
        name = str(target).replace("::", ".").removesuffix(".default")
        _register(name, definitions)
        return SpecLocation("torch", own=replace(own, name=name_from(name), thing=f"ops.{name}"))
    own = replace(own, name=name_from(_name_of(forms.unwrap(target))))
    folder.mkdir()
    path = folder / f"{own.name}.pt"
    if isinstance(target, torch.export.ExportedProgram):
        path = path.with_suffix(".pt2")
        torch.export.save(target, str(path))
    elif isinstance(target, SAVES_ITSELF):
        torch.jit.save(target, str(path))
    else:
        store(target, path, definitions, f"{what}, a {type(target).__name__},")
    return SpecLocation(own=replace(own, saved=str(path), trusted=True))  # this process has made it


def _name_of(target: Any) -> str:
    if isinstance(target, torch.jit.ScriptModule):
        return str(target.original_name)
    of_class = parametrize.type_before_parametrizations(target) if isinstance(target, nn.Module) else type(target)
    return str(getattr(target, "__name__", of_class.__name__)).strip("<>")


def _register(name: str, definitions: Definitions) -> None:
    """Have other processes register an operator: by the libraries that this one has loaded, and by its module."""
    for library in sorted(torch.ops.loaded_libraries):
        definitions.lines.append(f"__import__('torch').ops.load_library({library!r})")
    namespace, _, rest = name.partition(".")
    definition = internals.operator_definitions.get(f"{namespace}::{rest.partition('.')[0]}")
    if definition is None:
        return
    function = internals.implementation_of(definition)
    if function.__module__ == MAIN:
        definitions.add([function.__name__])
    else:
        definitions.lines.append(f"import {function.__module__}")


def store(value: Any, path: Path, definitions: Definitions, what: str, instead: str = ELSE) -> None:
    """Store anything, with the definitions of what it needs of the main module; otherwise by cloudpickle.

    Raises UsageError if neither can. The message names `what` it is, and what to do `instead`.
    """
    names: dict[str, None] = {}
    before = list(definitions.lines)
    try:
        torch.save(value, path, pickle_module=_module_of(pickler(names)))
        definitions.add(names)
    except Exception as problem:  # noqa: BLE001 -- whatever is in it may refuse with what it likes
        try:
            import cloudpickle  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 -- it need not be installed
        except ImportError:
            raise errors.UsageError(
                f"check: {what} cannot be sent to another process: {errors.describe_error(problem)}. {instead}, "
                "or install cloudpickle"
            ) from problem
        definitions.lines[:] = before
        try:
            torch.save(value, path, pickle_module=_module_of(pickler({}, cloudpickle.Pickler)))
        except Exception as again:
            raise errors.UsageError(
                f"check: {what} cannot be pickled: {errors.describe_error(again)}. {instead}"
            ) from again


def _module_of(of_class: type[pickle.Pickler]) -> Any:
    """What `torch.save` takes for a module with a pickler."""
    return SimpleNamespace(__name__="pickle", Pickler=of_class)


def hook(parameter: nn.Parameter, hooks: dict[str, OrderedDict[int, Any]]) -> None:
    """Give a parameter hooks, by the name of the attribute that holds them."""
    for name, some in hooks.items():
        setattr(parameter, name, some)


# Writes what a model needs of the caller's main module as source, so that another process can define it again.
#
# A script or a notebook is never executed again: it may train a model, or call `conformance.check`. Only the classes,
# functions, imports and values that the model names are written, and what those name in turn.

MAIN = "__main__"
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NoSourceError(ValueError):
    """Something of the main module has no source, and cannot be pickled either. The message names it."""


def pickler(names: dict[str, None], base: Any = pickle.Pickler) -> type[pickle.Pickler]:
    """A pickler that also takes what torch refuses or leaves a part out of: parametrizations, and hooks of parameters.

    `names` takes the names of the main module to which it refers; a pickler of class `base` does the rest.
    """

    class Own(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, (type, FunctionType)) and value.__module__ == MAIN:
                names[value.__qualname__.partition(".")[0]] = None
            for reduce in (reduce_hook, reduce_parametrized):
                if (found := reduce(value)) is not NotImplemented:
                    return found
            return super().reducer_override(value) if hasattr(base, "reducer_override") else NotImplemented

    return Own


class Definitions:
    """The definitions of some names of the main module; `lines` has the statements so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: set[str] = set()
        self._main = vars(sys.modules[MAIN])
        self._statements: list[ast.stmt] | None = None

    def add(self, names: Iterable[str]) -> None:
        """Add the definitions of these names, after those of all that they need.

        Raises NoSourceError if one of them can neither be written nor pickled.
        """
        for name in names:
            if name not in self._known and name in self._main and not name.startswith("__"):
                self._known.add(name)
                self._add(name, self._main[name])
                if not isinstance(self._main[name], ModuleType):
                    self._register(name)

    def text(self) -> str:
        """The source of all definitions."""
        flag = self._main.get("annotations")
        future = ["from __future__ import annotations"] if isinstance(flag, type(__future__.annotations)) else []
        return "\n\n".join([*future, *self.lines]) + "\n"

    def _add(self, name: str, value: Any) -> None:
        own = [statement for statement in self._all() if name in names_defined(statement)]
        imports = [statement for statement in own if isinstance(statement, ast.Import)]
        if isinstance(value, ModuleType):
            self.lines += map(ast.unparse, imports) if imports else [f"import {value.__name__} as {name}"]
        elif home := home_of(value):
            self.lines.append(f"{name} = __import__('operator').attrgetter({home[1]!r})(")
            self.lines[-1] += f"__import__('importlib').import_module({home[0]!r}))"
        elif own and isinstance(own[-1], DEFINES):
            self._write(own[-1])
        elif isinstance(value, (type, FunctionType)) and value.__module__ == MAIN and not own:
            raise NoSourceError(f"{name} is defined in the main module, and its source is not known")
        elif _is_literal(value):
            self.lines.append(f"{name} = {value!r}")
        else:
            self._pickle(name, value, own)

    def _register(self, name: str) -> None:
        """Add the statements that register something for a name, such as the backward of a custom operator."""
        for statement in self._all():
            if name in names_registered(statement):
                self._write(statement)

    def _write(self, statement: ast.stmt) -> None:
        """A statement, after the definitions of the names in it."""
        text = ast.unparse(statement)
        self.add(names_in(statement))
        if text not in self.lines:
            self.lines.append(text)

    def _pickle(self, name: str, value: Any, own: list[ast.stmt]) -> None:
        file, names = BytesIO(), dict[str, None]()
        try:
            pickler(names)(file).dump(value)
        except Exception as problem:  # a value may refuse with what it likes
            if not own:
                raise NoSourceError(
                    f"{name}, a {type(value).__name__}, has no source and cannot be pickled"
                ) from problem
            self._write(own[-1])
            return
        self.add(names)
        self.lines.append(f"{name} = __import__('pickle').loads({file.getvalue()!r})")

    def _all(self) -> list[ast.stmt]:
        """The statements of the script, or of the cells of a notebook."""
        if self._statements is None:
            files = {self._main.get("__file__"): None}
            files.update({code.co_filename: None for value in list(self._main.values()) for code in _codes(value)})
            self._statements = [statement for file in filter(None, files) for statement in _parse(file)]
        return self._statements


def _parse(file: str) -> list[ast.stmt]:
    try:
        return ast.parse("".join(linecache.getlines(file))).body
    except SyntaxError:  # the magic of a notebook
        return []


def names_in(node: ast.AST) -> list[str]:
    """The global names to which a statement or an expression refers, its functions included."""

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for inner in table.get_children():
            yield from used(inner)

    return sorted(set(used(symtable.symtable(ast.unparse(node), "<definitions>", "exec"))))


def names_registered(statement: ast.stmt) -> set[str]:
    """The names in the calls that register something: those of the statement, or of its decorators."""
    if isinstance(statement, DEFINES):
        calls: list[ast.expr] = statement.decorator_list
    else:
        calls = [statement.value] if isinstance(statement, ast.Expr) else []
    registering = [c for c in calls if "register" in ast.unparse(c.func if isinstance(c, ast.Call) else c)]
    return {name for call in registering for name in names_in(call)}


def names_defined(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(statement, DEFINES):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _codes(value: Any) -> Iterable[Any]:
    """The code of a function of the main module, or of the methods of a class."""
    if getattr(value, "__module__", None) == MAIN:
        for part in vars(value).values() if isinstance(value, type) else (value,):
            code = getattr(inspect.unwrap(part) if callable(part) else part, "__code__", None)
            if code is not None:
                yield code


def home_of(value: Any) -> tuple[str, str] | None:
    """Module and name from which a value can be imported; None if it has no such place, or is of the main module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if not isinstance(module, str) or not isinstance(name, str) or module == MAIN:
        return None
    try:
        same = operator.attrgetter(name)(importlib.import_module(module)) is value
    except (AttributeError, ImportError, ValueError):
        return None
    return (module, name) if same else None


def _is_literal(value: Any) -> bool:
    try:
        return type(value) is not object and bool(ast.literal_eval(repr(value)) == value)
    except Exception:  # noqa: BLE001 -- its `repr` and `==` may do what they like
        return False


# Pickles modules with parametrizations, which torch refuses to pickle: it made their classes for each of them.


def reduce_parametrized(value: Any) -> Any:
    """How to pickle a module with parametrizations, as `pickle.Pickler.reducer_override` asks; else NotImplemented."""
    if not isinstance(value, nn.Module) or not parametrize.is_parametrized(value):
        return NotImplemented
    base = parametrize.type_before_parametrizations(value)
    names = tuple(value.parametrizations)  # type: ignore[arg-type]  # a ModuleDict
    state = dict(getattr(base, "__getstate__", vars)(value))
    state[internals.LOADING_HOOKS] = OrderedDict()  # weight_norm's, for old checkpoints, cannot be pickled
    return bare, (base, names), state


def bare(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """A module of this class whose tensors of these names are properties, as parametrizations make them.

    It is to get its state afterwards. The class is the one without parametrizations.
    """
    module = base.__new__(base)
    nn.Module.__init__(module)
    for name in names:
        module.register_parameter(name, nn.Parameter(torch.empty(())))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    return module


# Pickles parameters with their hooks, which torch leaves out.


def reduce_hook(value: Any) -> Any:
    """How to pickle a parameter with hooks, as `pickle.Pickler.reducer_override` asks; else NotImplemented."""
    if not isinstance(value, nn.Parameter):
        return NotImplemented
    hooks = {name: OrderedDict(getattr(value, name)) for name in internals.HOOKS_OF_TENSORS if getattr(value, name)}
    if not hooks:
        return NotImplemented
    rebuild, arguments = value.__reduce_ex__(2)[:2]
    return rebuild, arguments, hooks, None, None, hook


# Takes the modes that a person has registered in a script, a notebook or a test to the processes of their cells.

MODES_FILE = "modes.py"
AT_THE_TOP = "Define its functions at the top of a module, a script or a notebook's cell"
REGISTERING = """\
# Registers the modes of the process that called `conformance.check`.
from conformance.own import capture

capture.register_modes(__file__)
"""


def store_modes(asked: Collection[str], folder: Path) -> SpecLocation | None:
    """The file that registers modes of this process in another one; None if it has registered none of them.

    Without names, all of them are asked for. The folder is made. Raises UsageError if a mode cannot be stored.
    """
    own = [mode for name, mode in axes.MODES.items() if mode.prepare is not None and (not asked or name in asked)]
    if not own:
        return None
    folder.mkdir()
    definitions = Definitions()
    for number, mode in enumerate(own):
        store(mode, folder / f"{number:02}.pt", definitions, f"the mode {mode.name!r}", AT_THE_TOP)
    if definitions.lines:
        (folder / DEFINITIONS).write_text(definitions.text(), encoding="utf-8")
    (folder / MODES_FILE).write_text(REGISTERING, encoding="utf-8")
    return SpecLocation(file=str(folder / MODES_FILE))


def register_modes(file: str) -> None:
    """Register the modes that are stored beside a file, in their order, also if what defines them has done so.

    Raises UsageError if what they need of the caller's main module cannot be defined again.
    """
    folder = Path(file).parent
    spec.define(str(folder / DEFINITIONS) if (folder / DEFINITIONS).exists() else "")
    modes: list[axes.Mode] = [saved.unpickle(path) for path in sorted(folder.glob("*.pt"))]
    for mode in modes:
        axes.MODES.pop(mode.name, None)
        axes.MODES[mode.name] = mode

"""Writes what a model needs of the caller's main module as source, so that another process can define it again.

A script or a notebook is never executed again: it may train a model, or call `conformance.check`. Only the classes,
functions, imports and values that the model names are written, and what those name in turn.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import linecache
import operator
import pickle
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from types import FunctionType, ModuleType
from typing import Any

MAIN = "__main__"
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NoSourceError(ValueError):
    """Something of the main module has no source, and cannot be pickled either. The message names it."""


def pickler(names: dict[str, None], reduced: Callable[[Any], Any] = lambda _: NotImplemented) -> type[pickle.Pickler]:
    """A pickler that adds the names of the main module to which it refers.

    Args:
        names: where to add them.
        reduced: how to pickle what pickle refuses; see `pickle.Pickler.reducer_override`.
    """

    class Noting(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, (type, FunctionType)) and value.__module__ == MAIN:
                names[value.__qualname__.partition(".")[0]] = None
            return reduced(value)

    return Noting


class Definitions:
    """The definitions of some names of the main module.

    Attributes:
        lines: the statements so far.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: set[str] = set()
        self._main = vars(sys.modules[MAIN])
        self._statements: list[ast.stmt] | None = None

    def add(self, names: Iterable[str]) -> None:
        """Add the definitions of these names, after those of all that they need.

        Raises:
            NoSourceError: one of them can neither be written nor pickled.
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
        own = [statement for statement in self._all() if name in _defined(statement)]
        imports = [statement for statement in own if isinstance(statement, ast.Import)]
        if isinstance(value, ModuleType):
            self.lines += map(ast.unparse, imports) if imports else [f"import {value.__name__} as {name}"]
        elif home := _home(value):
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
            if name in _registered(statement):
                self._write(statement)

    def _write(self, statement: ast.stmt) -> None:
        """A statement, after the definitions of the names in it."""
        text = ast.unparse(statement)
        self.add(_names(statement))
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
            self._statements = [statement for file in filter(None, files) for statement in _parsed(file)]
        return self._statements


def _parsed(file: str) -> list[ast.stmt]:
    try:
        return ast.parse("".join(linecache.getlines(file))).body
    except SyntaxError:  # the magic of a notebook
        return []


def _names(node: ast.AST) -> list[str]:
    """The global names to which a statement or an expression refers, its functions included."""

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for inner in table.get_children():
            yield from used(inner)

    return sorted(set(used(symtable.symtable(ast.unparse(node), "<definitions>", "exec"))))


def _registered(statement: ast.stmt) -> set[str]:
    """The names in the calls that register something: those of the statement, or of its decorators."""
    if isinstance(statement, DEFINES):
        calls: list[ast.expr] = statement.decorator_list
    else:
        calls = [statement.value] if isinstance(statement, ast.Expr) else []
    registering = [c for c in calls if "register" in ast.unparse(c.func if isinstance(c, ast.Call) else c)]
    return {name for call in registering for name in _names(call)}


def _codes(value: Any) -> Iterable[Any]:
    """The code of a function of the main module, or of the methods of a class."""
    if getattr(value, "__module__", None) == MAIN:
        for part in vars(value).values() if isinstance(value, type) else (value,):
            code = getattr(inspect.unwrap(part) if callable(part) else part, "__code__", None)
            if code is not None:
                yield code


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(statement, DEFINES):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _home(value: Any) -> tuple[str, str] | None:
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

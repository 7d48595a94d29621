"""Writes what a model consists of into one script: the source of each name, after all that it names in turn.

Only a person's own modules and those of the zoo are written. What is of torch, of Python or installed is imported.
"""

import ast
import importlib
import importlib.util
import linecache
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from conformance.cache import sources
from conformance.own.capture import DEFINES, MAIN, home_of, names_defined, names_in, names_registered
from conformance.plan.find import FILE

STAND_INS = {  # for what modes need of this project
    "Prepared": """\
class Prepared:  # in the place of conformance.Prepared
    def __init__(self, call, proof=None, parameters_of=None, **_):
        self.call, self.parameters_of = call, parameters_of""",
    "Runs": """\
class Runs:  # in the place of conformance.Runs, which counts
    def __init__(self, what):
        self.counted = self.compiler = self.prepared = lambda call, *_: call""",
}
REGISTERING = ("register_mode", "register_backend")
LITERALS = (bool, int, float, str, type(None), torch.dtype)


class NotWrittenError(ValueError):
    """Something cannot be written into a script. The message names it."""


class Source:
    """The imports and definitions of a script.

    `inlines` tells whether own modules are written, or imported too; `stands_in` whether a part of this project has a
    stand-in among the definitions.
    """

    def __init__(self, *, inlines: bool) -> None:
        self.inlines, self.stands_in = inlines, False
        self.imports: dict[str, None] = {}
        self.folders: dict[str, None] = {}
        self.definitions: list[str] = []
        self._known: dict[str, Any] = {}

    def name(self, value: Any) -> str:
        """An expression for a function or a class, whose definition is written.

        Raises NotWrittenError if it, or something that it names, has no place of its own.
        """
        module, name = sys.modules.get(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
        if module is None or (name.endswith("<lambda>") and not isinstance(value, FunctionType)):
            raise NotWrittenError(f"a {type(value).__name__} has no source")
        if name.endswith("<lambda>"):
            return f"({ast.unparse(self._lambda(value, module))})"
        if getattr(module, name, None) is not value:
            raise NotWrittenError(f"{name} is not at the top of a module")
        if _is_own(module):
            self.add(name, module)
        else:
            self.imports[f"from {module.__name__} import {name}"] = None
        return name

    def head(self, modules: Sequence[str]) -> list[str]:
        """The import statements, with those of some modules of Python, and the folders from which own ones come."""
        names: dict[str, list[str]] = {}
        for statement in self.imports:
            if (found := re.fullmatch(r"from (\S+) import (.+)", statement)) and found[1] != "__future__":
                names.setdefault(found[1], []).append(found[2])
        rest = [s for s in self.imports if not s.startswith("from ") or "__future__" in s]
        modules = sorted({*modules, *(["sys"] if self.folders else [])})
        folders = [f"sys.path.append({folder!r})" for folder in self.folders]
        lines = [
            *(s for s in rest if "__future__" in s),
            *(f"import {module}" for module in modules),
            *rest,
            "import torch",
        ]
        lines += [*folders, *(f"from {home} import {', '.join(sorted(some))}" for home, some in names.items())]
        return list(dict.fromkeys(lines))

    def holds(self, value: type) -> bool:
        """Whether the script defines or imports a class by itself."""
        return _is_own(sys.modules[value.__module__])

    def made_by(self, build: Any) -> str:
        """An expression for what a builder makes; NotWrittenError as of `name`."""
        if isinstance(build, FunctionType) and build.__name__ == "<lambda>":
            return ast.unparse(self._lambda(build, sys.modules[build.__module__]).body)
        given: list[str] = []
        if isinstance(build, partial):
            given = [self._argument(one) for one in build.args]
            given += [f"{name}={self._argument(one)}" for name, one in build.keywords.items()]
            build = build.func
        return f"{self.name(build)}({', '.join(given)})"

    def registered(self, mode: str, module: ModuleType) -> str:
        """The expression that a module registers as a mode of that name; NotWrittenError if none of its top does."""
        for call in (node for statement in _statements(module) for node in ast.walk(statement)):
            if _registers_mode(call) and [ast.unparse(one) for one in call.args[:1]] == [repr(mode)]:
                self._add_names(call.args[1], module)
                return ast.unparse(call.args[1])
        raise NotWrittenError(f"{module.__name__} registers {mode} in no statement of its own")

    def _argument(self, value: Any) -> str:
        return self.name(value) if isinstance(value, (type, FunctionType)) else literal(value)

    def add(self, name: str, module: ModuleType) -> None:
        """Write what a name of an own module means there; NotWrittenError as of `name`."""
        value = getattr(module, name)
        if name in self._known:
            if self._known[name] is not value:
                raise NotWrittenError(f"{name} means two things")
            return
        self._known[name] = value
        if not self.inlines:
            self._import_from(module, name)
            return
        own = [statement for statement in _statements(module) if name in names_defined(statement)]
        if not own:
            raise NotWrittenError(f"{name} of {module.__name__} has no statement at the top of its file")
        statement, home = own[-1], home_of(value)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._add_import(name, statement, module)
        elif home and not isinstance(statement, DEFINES) and not _is_own(sys.modules[home[0]]):
            self.imports[f"from {home[0]} import {home[1]}"] = None
        else:
            self._write(statement, module)
            for other in _statements(module):
                if (
                    name in names_registered(other)
                    and other is not statement
                    and not _registers_mode(getattr(other, "value", other))
                ):
                    self._write(other, module)

    def _add_import(self, name: str, statement: ast.Import | ast.ImportFrom, module: ModuleType) -> None:
        alias = next(a for a in statement.names if name in (a.asname, a.name.partition(".")[0]))
        as_name = f" as {alias.asname}" if alias.asname else ""
        if isinstance(statement, ast.Import):
            if _is_own(importlib.import_module(alias.name)):
                raise NotWrittenError(f"{module.__name__} names {alias.name} as a whole")
            self.imports[f"import {alias.name}{as_name}"] = None
            return
        home = importlib.util.resolve_name("." * statement.level + (statement.module or ""), module.__package__)
        if home.partition(".")[0] == "conformance":
            if name not in STAND_INS:
                raise NotWrittenError(f"{name} is of conformance")
            self.stands_in = True
            self.definitions.append(STAND_INS[name])
        elif _is_own(source := importlib.import_module(home)):
            if isinstance(getattr(source, alias.name), ModuleType):
                raise NotWrittenError(f"{module.__name__} names {home}.{alias.name} as a whole")
            del self._known[name]
            self.add(alias.name, source)
            if alias.asname:
                self.definitions.append(f"{alias.asname} = {alias.name}")
        else:
            self.imports[f"from {home} import {alias.name}{as_name}"] = None

    def _write(self, statement: ast.stmt, module: ModuleType) -> None:
        text = _text(statement, module)
        self._add_names(statement, module)
        if text not in self.definitions:
            self.definitions.append(text)

    def _add_names(self, node: ast.AST, module: ModuleType) -> None:
        if isinstance(vars(module).get("annotations"), type(importlib.import_module("__future__").annotations)):
            self.imports = {"from __future__ import annotations": None, **self.imports}
        for name in names_in(node):
            if hasattr(module, name) and not name.startswith("__"):
                self.add(name, module)

    def _lambda(self, function: FunctionType, module: ModuleType) -> ast.Lambda:
        line = function.__code__.co_firstlineno
        nodes = [n for s in _statements(module) for n in ast.walk(s) if isinstance(n, ast.Lambda) and n.lineno == line]
        if len(nodes) != 1 or function.__closure__:
            raise NotWrittenError("a lambda has a closure, or another one beside it")
        self._add_names(nodes[0], module)
        return nodes[0]

    def _import_from(self, module: ModuleType, name: str) -> None:
        file = Path(str(module.__file__)).resolve()
        if module.__name__ == MAIN:
            raise NotWrittenError(f"{name} is of a main module, which nothing can import")
        of_file = module.__name__.startswith(FILE)
        place = file.stem if of_file else module.__name__
        depth = 0 if of_file else place.count(".") + (file.stem == "__init__")
        self.folders[str(file.parents[depth])] = None
        self.imports[f"from {place} import {name}"] = None


def _registers_mode(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether it is a call that registers a mode, with its name and what makes it."""
    named = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in REGISTERING
    return named and len(node.args) == len(("name", "prepare"))  # type: ignore[attr-defined]


def literal(value: Any) -> str:
    """The source of a number, a text, None or a dtype; NotWrittenError for anything else."""
    if type(value) not in LITERALS:
        raise NotWrittenError(f"an argument is a {type(value).__name__}")
    return repr(value)


def _is_own(module: ModuleType) -> bool:
    """Whether a module is a person's own or of the zoo."""
    file = getattr(module, "__file__", None)
    return module.__name__.partition(".")[0] == "zoo" or bool(file and list(sources.own([Path(file).resolve()])))


@cache
def _statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse("".join(linecache.getlines(str(module.__file__)))).body


def _text(statement: ast.stmt, module: ModuleType) -> str:
    """The source of a statement without docstrings."""
    lines, left_out = linecache.getlines(str(module.__file__)), set[int]()
    for node in ast.walk(statement):
        if isinstance(node, DEFINES) and ast.get_docstring(node) is not None and len(node.body) > 1:
            last = int(node.body[0].end_lineno or 0)
            left_out |= {*range(node.body[0].lineno, last + 1 + (not lines[last].strip()))}
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
    return "".join(lines[n - 1] for n in range(first, int(statement.end_lineno or 0) + 1) if n not in left_out).rstrip()

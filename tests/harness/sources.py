"""The project's own source files, and the imports between them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("zoo", "conformance")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
WORDS = "words"  # the files at the top of conformance that every room may use
TOP = dict.fromkeys(("axes", "errors", "seeds", "torch_versions"), WORDS)


@cache  # the tests ask for each module hundreds of times
def imports(name, *, inner=True):
    """Names of the modules that a module imports; with `inner`, also those inside functions."""
    path = MODULES[name]
    found = set()
    for node in _nodes(ast.parse(path.read_text()), inner=inner):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inside}
    return frozenset(found)


def _nodes(tree, *, inner) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if inner or not (isinstance(child, FUNCTIONS) or _is_for_types(child)):
            yield child
            yield from _nodes(child, inner=inner)


def _is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _reached(start, step):
    """Everything that steps lead to, one after the other; `step` gives the next of each."""
    seen, pending = set(), list(start)
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending += step(current)
    return seen


def reached(name):
    """Everything that a module brings in through modules of the project, their packages included.

    A function of the zoo may import torch: the wall between its rooms is conformance's own.
    """

    def step(module):
        if module not in MODULES:
            return set()
        return {*imports(module, inner=not module.startswith("zoo")), module.rpartition(".")[0]} - {""}

    return _reached([name], step)


def room_of(module):
    """The room of a module of conformance: its folder, or its file at the top."""
    room = module.split(".")[1] if "." in module else ""
    return TOP.get(room, room)


def rooms():
    """All rooms of conformance, each with the rooms that it imports from."""
    found = {room_of(name): set() for name in MODULES if name.startswith("conformance.")}
    for name in MODULES:
        if name.startswith("conformance."):
            known = {room_of(m) for m in imports(name) if m.startswith("conformance.") and m in MODULES}
            found[room_of(name)] |= known - {room_of(name)}
    return found


def below(room, graph):
    """All rooms that a room imports from, directly or through others."""
    return _reached(graph[room], graph.get)


def arrows(graph):
    """The imports between rooms that others do not imply."""
    return {
        (room, other)
        for room, known in graph.items()
        for other in known
        if not any(other in below(third, graph) for third in known - {other})
    }

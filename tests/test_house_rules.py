"""Sizes and documentation of the project's files."""

import ast
import statistics

import pytest
from harness.sources import MODULES, ROOT

from conformance.judging import toml_file

MOST_LINES = toml_file.read(ROOT / "pyproject.toml")["tool"]["house"]["most-lines"]
LONGEST_FILE, MEDIAN_FILE, LONGEST_FUNCTION = 600, 200, 40
FOLDERS = ("zoo", "conformance", "tests", "benchmarks", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path):
    """Every function of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def length(function):
    """Lines of a function without its docstring."""
    start = function.body[0].end_lineno + 1 if ast.get_docstring(function) else function.lineno
    return function.end_lineno - start + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_too_long(path):
    assert lines(path) <= LONGEST_FILE
    assert {f.name: length(f) for f in functions(path) if length(f) > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize(("folder", "most"), MOST_LINES.items())
def test_the_whole_is_no_larger_than_agreed(folder, most):
    assert sum(lines(path) for path in FILES if path.is_relative_to(ROOT / folder)) <= most


@pytest.mark.parametrize("package", ["zoo", "conformance"])
def test_most_files_are_short(package):
    sizes = [lines(path) for path in FILES if path.is_relative_to(ROOT / package)]
    assert statistics.median(sizes) <= MEDIAN_FILE


def public(tree, inside=""):
    """Name and node of every public class, function, method and property at the top of a file or class."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield f"{inside}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{node.name}.")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_everything_public_is_documented(name):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body
    assert [what for what, node in public(tree) if not ast.get_docstring(node)] == []


def test_no_drawer_for_odds_and_ends():
    assert not {path for path in FILES if path.stem in ("utils", "helpers", "common", "misc")}

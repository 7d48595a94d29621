"""The studies are a package that imports without side effects, and that knows neither tests nor private names."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
SCRIPTS = [path.stem for path in FILES if "__main__" in path.read_text(encoding="utf-8")]
IMPORT_ALL = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch.utils.benchmark  # it changes variables and the path
before = dict(os.environ), list(sys.path)
for name in sys.argv[1:]:
    importlib.import_module(f"benchmarks.{name}")
print(json.dumps([dict(os.environ) == before[0], sys.path == before[1]]))
"""


def imported(path):
    """The modules that a file imports, and the names that it takes from each."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            found += [(node.module, alias.name) for alias in node.names]
    return found


def private_uses(path):
    """Private names of the project that a file reads from a module: `module._name`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {name for module, name in imported(path) if module.split(".")[0] in ("conformance", "zoo", "benchmarks")}
    return [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours
        if node.attr.startswith("_") and not node.attr.startswith("__")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_study_imports_neither_tests_nor_private_names(path):
    modules = {module.split(".")[0] for module, _ in imported(path)}
    assert not modules & {"tests", "harness", "specs"}
    ours = [(module, name) for module, name in imported(path) if module.split(".")[0] in ("conformance", "zoo")]
    assert not [name for module, name in ours if f".{module}.{name}".find("._") >= 0]
    assert private_uses(path) == []


def test_importing_the_studies_changes_neither_the_environment_nor_the_path():
    command = [sys.executable, "-c", IMPORT_ALL, *(path.stem for path in FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True]


def test_every_study_is_a_script_or_is_imported_by_one():
    assert len(SCRIPTS) == 18
    used = {name for path in FILES for module, name in imported(path) if module == "benchmarks"}
    used |= {module.split(".")[1] for path in FILES for module, _ in imported(path) if module.startswith("benchmarks.")}
    children = {"damaged_cell", "checkerboard_trial", "meter_trial"}  # their targets name them
    assert {path.stem for path in FILES} == used | children | set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_explains_how_to_run_it_from_the_repository_root(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out

"""Imports point one way: who may know whom, and what must stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("zoo", "conformance")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}
CONTRACT = ("case", "claim", "expect", "scale", "spec")
CHILDREN = (
    "cell",
    "ceilings",
    "compile_cost",
    "contest",
    "duelist",
    "entrant",
    "footprint",
    "preload",
)  # run in processes of their own
BELOW = {  # what a file of each folder of the zoo may know; files of one folder do not know each other
    "functions": ("known", "custom_ops"),
    "ops": ("known",),
    "models": ("known", "functions", "ops"),
    "training": ("models", "training.step"),
    "counterexamples": ("functions", "ops", "models", "training", "data"),
    "probes": ("probe", "functions", "models"),
    "data": ("data",),  # one package
    "memory": ("memory",),
}
LIGHT = """
    axes bench claims cli curve execution interval isolation judge machine plot plugin records replication
    report roofline run speed store table
""".split()


def imports(name, *, inner):
    """Names of the modules a module imports, at its top level or also inside functions."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in nodes(ast.parse(path.read_text()), inner=inner):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *filter(None, [node.module])])
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
    return found


def nodes(tree, *, inner):
    """Every node, or those that run at import."""
    for child in ast.iter_child_nodes(tree):
        if inner or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from nodes(child, inner=inner)


def reached(name):
    """Everything a module brings in through modules of the project, their packages included."""
    seen, pending = set(), [name]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in MODULES:
            pending += imports(current, inner=False)
            pending += [current.rpartition(".")[0]] if "." in current else []
    return seen


def test_the_parser_sees_what_is_there():
    assert {"torch", "zoo.spec"} <= imports("zoo.catalog", inner=False)
    assert "conformance.judge" in imports("conformance.execution", inner=False)
    assert "torch._dynamo" in imports("conformance.modes", inner=True) - imports("conformance.modes", inner=False)


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.split(".")[0] == "zoo"))
def test_the_zoo_knows_nothing_of_the_matrix(name):
    assert not [m for m in imports(name, inner=True) if m.split(".")[0] == "conformance"]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.split(".")[0] == "zoo" and n.count(".") > 1))
def test_files_of_the_zoo_know_the_contract_and_the_folders_below_their_own(name):
    known = {m for m in imports(name, inner=True) if m.split(".")[0] == "zoo"}
    below = BELOW[name.split(".")[1]]
    assert not [m for m in known if not f"{m}.".startswith(tuple(f"zoo.{b}." for b in (*CONTRACT, *below)))]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.split(".")[0] == "conformance"))
def test_the_matrix_knows_the_zoo_by_contract_and_catalogue_alone(name):
    known = {m for m in imports(name, inner=True) if m.split(".")[0] == "zoo"}
    if name.removeprefix("conformance.") in CHILDREN:
        known = {m for m in known if not m.startswith(("zoo.memory", "zoo.training.step"))}
    assert known <= {"zoo", "zoo.catalog", "zoo.probe", *(f"zoo.{file}" for file in CONTRACT)}


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_never_reach_torch(name):
    heavy = {m for m in reached(f"conformance.{name}") if m.split(".")[0] in ("torch", "zoo", "numpy")}
    assert heavy == set()


def test_only_the_child_imports_what_a_cell_does():
    importers = {name for name in MODULES if "conformance.cell" in imports(name, inner=True)}
    assert importers <= {f"conformance.{name}" for name in CHILDREN}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(package):
    done, path = set(), []

    def visit(name):
        if name in path:
            pytest.fail(" → ".join([*path[path.index(name) :], name]))
        if name in done or name not in MODULES:
            return
        path.append(name)
        for other in sorted(imports(name, inner=False)):
            if other != package:  # a package's own __init__ gathers its modules
                visit(other)
        path.pop()
        done.add(name)

    for name in MODULES:
        if name.startswith(f"{package}."):
            visit(name)


def test_no_drawer_for_odds_and_ends():
    assert not {n for n in MODULES if n.rpartition(".")[2] in ("utils", "helpers", "common", "misc")}


def fresh(code):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("name", ["", *(f".{n}" for n in LIGHT)])
def test_a_light_module_leaves_torch_out_of_a_fresh_interpreter(name):
    code = f"import sys, conformance{name}; print('torch' in sys.modules, 'conformance' in sys.modules)"
    assert fresh(code) == ["False", "True"]


def test_the_zoo_brings_torch_and_packaging_alone():
    code = """
import sys, torch, packaging.specifiers, difflib, pkgutil, fnmatch
before = {m.split(".")[0] for m in sys.modules}
import zoo
zoo.list_models()
print(*sorted({m.split(".")[0] for m in sys.modules} - before - set(sys.stdlib_module_names)))
"""
    assert fresh(code) == ["zoo"]

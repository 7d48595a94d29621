"""The rooms: which may import which, which run with torch, and what the documents tell of them."""

import re

import pytest
from harness.processes import fresh
from harness.sources import MODULES, PACKAGES, ROOT, arrows, below, imports, reached, room_of, rooms

CONTRACT = (
    "arguments candidate case claim convention error_input errors expect family internals scale spec states".split()
)
TORCH = set("plan gates evaluate float64 perturb derivatives oracle cell measure own".split())  # rooms that import it
LIGHT = sorted({room for room in rooms() if room not in TORCH})
TOOLS_OF_THE_ZOO = {"measure": ("zoo.memory", "zoo.training.step"), "plan": ("zoo.probe",), "cell": ("zoo.probe",)}
PARTS = ("attention", "embedding", "rms_norm", "rotary")  # the models that others are put together from
BELOW = {  # what a file of each folder of the zoo may import; files of one folder do not import each other
    "functions": ("shared_expectations", "custom_ops"),
    "ops": ("shared_expectations",),
    "models": ("shared_expectations", "functions", "ops", *(f"models.{part}" for part in PARTS)),
    "training": ("models", "amp", "training.step", "training.checkpoint", "training.epochs"),
    "counterexamples": ("functions", "ops", "models", "training", "data"),
    "probes": ("probe", "functions", "models"),
    "data": ("data",),  # one package
    "memory": ("memory",),
}
MATRIX = sorted(name for name in MODULES if name.split(".")[0] == "conformance")
ZOO = sorted(name for name in MODULES if name.split(".")[0] == "zoo")


def test_the_parser_sees_what_is_there():
    assert {"difflib", "zoo.spec"} <= imports("zoo.catalog", inner=False)
    assert "conformance.verdict" in imports("conformance.judging.executor", inner=False)
    table = "conformance.process.process_table"
    assert "fcntl" in imports(table) - imports(table, inner=False)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_imports_nothing_of_the_matrix(name):
    assert not [m for m in imports(name) if m.split(".")[0] == "conformance"]


@pytest.mark.parametrize("name", [n for n in ZOO if n.count(".") > 1])
def test_a_file_of_the_zoo_imports_the_contract_and_lower_folders(name):
    known = {m for m in imports(name) if m.split(".")[0] == "zoo"}
    folder = name.split(".")[1]
    lower = ("arguments", *BELOW[folder], *([folder] if name.endswith(".__main__") else []))
    assert not [m for m in known if not f"{m}.".startswith(tuple(f"zoo.{b}." for b in (*CONTRACT, *lower)))]


@pytest.mark.parametrize("name", MATRIX)
def test_the_matrix_imports_the_contract_and_the_catalogue_of_the_zoo(name):
    known = {m for m in imports(name) if m.split(".")[0] == "zoo"}
    tools = TOOLS_OF_THE_ZOO.get(room_of(name), ("-",))
    allowed = {"zoo", "zoo.catalog", *(f"zoo.{file}" for file in CONTRACT if file != "claim")}
    assert {m for m in known if not m.startswith(tools)} <= allowed


@pytest.mark.parametrize("name", [n for n in MATRIX if room_of(n) not in TORCH])
def test_a_light_room_never_reaches_torch(name):
    found = reached(name)
    assert not {m for m in found if m.split(".")[0] in ("torch", "numpy")}
    assert {m for m in found if m.split(".")[0] == "zoo"} <= {"zoo", "zoo.errors", "zoo.expect"}
    assert not {m for m in found if m.startswith("conformance.") and room_of(m) in TORCH}


def test_the_docstring_of_a_room_says_on_which_side_of_the_wall_it_is():
    texts = {path.parent.name: path.read_text() for path in (ROOT / "conformance").glob("*/__init__.py")}
    assert {room for room, text in texts.items() if " With torch." in text} == TORCH
    assert {room for room, text in texts.items() if " Without torch." in text} == set(texts) - TORCH


@pytest.mark.parametrize("room", sorted(TORCH))
def test_a_torch_room_reaches_torch(room):
    modules = [n for n in MATRIX if room_of(n) == room and MODULES[n].name != "__init__.py"]
    assert modules
    assert all("torch" in {m.split(".")[0] for m in reached(n)} for n in modules)


def test_there_is_no_circle_between_rooms_and_few_arrows():
    graph = rooms()
    assert not [room for room in graph if room in below(room, graph)]
    assert len(arrows(graph)) <= 29, sorted(arrows(graph))


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_circle_between_modules(package):
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


def test_no_module_locks_with_what_windows_lacks():
    table = "conformance.process.process_table"  # which does without where that is absent
    assert [name for name in MATRIX if "fcntl" in imports(name)] == [table]
    assert "fcntl" not in imports(table, inner=False)


def test_the_light_rooms_leave_torch_out_of_a_fresh_interpreter():
    names = ", ".join(n for n in MATRIX if room_of(n) in LIGHT and not n.endswith("__main__"))
    words = fresh(f"import sys, {names}; print('torch' in sys.modules, 'conformance.cli' in sys.modules)")
    assert words == ["False", "True"]


def test_the_plugin_costs_other_test_suites_next_to_nothing():
    code = "import sys, pytest, conformance.plugin; print(*(m for m in sys.modules if m.startswith('conformance.')))"
    assert set(fresh(code)) <= {"conformance.plugin", "conformance.axes", "conformance.errors"}


def test_the_zoo_brings_torch_and_packaging_alone():
    code = """
import sys, torch, packaging.specifiers, difflib, pkgutil, fnmatch
before = {m.split(".")[0] for m in sys.modules}
import zoo
zoo.list_models()
print(*sorted({m.split(".")[0] for m in sys.modules} - before - set(sys.stdlib_module_names)))
"""
    assert fresh(code) == ["zoo"]


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)*\w+\.py|\w+/)`", PAGE))))
def test_every_path_on_the_page_about_architecture_exists(path):
    places = [ROOT / "conformance", ROOT, ROOT / "zoo"]
    assert any((place / path).exists() for place in places)


def test_the_page_about_architecture_names_every_room():
    assert set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE)) == {
        room for room in rooms() if (ROOT / "conformance" / room).is_dir()
    }

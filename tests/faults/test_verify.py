"""`conformance verify`: an independent reader, short enough to be read, that agrees with the project's own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from harness.command import FP32, conformance, run_folder
from harness.stored_runs import NAMES, plan_of, write

from conformance.records.verdicts import STATUSES
from conformance.run import documents, regular_file, sealed, store
from conformance.run import verify as verifier
from conformance.run.bounded import RECORD_BYTES
from conformance.run.verify import verify

FILE = Path(verifier.__file__)


@pytest.fixture
def folder(tmp_path):
    """A run of three cells."""
    run = tmp_path / "run"
    store.create(run, plan_of(*NAMES))
    return run


def test_it_is_short_and_brings_the_standard_library_alone():
    assert len(FILE.read_text().splitlines()) <= 150
    tree = ast.parse(FILE.read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_its_words_and_bounds_are_those_of_the_project():
    assert {name for name, status in STATUSES.items() if status.red} == verifier.RED
    assert {name for name, status in STATUSES.items() if not status.red} == verifier.GREEN
    assert (verifier.FORMAT, verifier.RECORD_BYTES) == (documents.FORMAT, RECORD_BYTES)


def test_a_run_without_verdicts_is_not_complete(folder):
    assert verify(folder).code == 1
    assert verify(folder).text() == "3 cells: 3 notrun; all sums hold; run.json is missing, so the run is not complete"


@pytest.mark.parametrize("status", STATUSES)
def test_a_red_cell_is_red(folder, status):
    write(folder, "a", "b")
    write(folder, "c", status=status)
    found = verify(folder)
    assert found.code == STATUSES[status].red
    assert found.statuses == {cell: v.status for cell, v in store.read(folder).verdicts.items()}


def test_a_selection_is_what_counts(folder):
    writer = store.Writer(folder)
    writer.select([plan_of("b").cells[0].id])
    writer.close()
    write(folder, "b")
    assert verify(folder).code == 0
    assert verify(folder).text() == "1 cells: 1 pass; all sums hold"


def test_a_folder_without_a_plan_is_none(tmp_path):
    assert verify(tmp_path).code == 4
    assert verify(tmp_path).text() == "plan.json: there is none, so this is no run folder"


def test_another_format_is_named(folder):
    regular_file.write_whole(folder / store.PLAN, sealed.seal({"format": 9, "version": "7.0"}))
    assert verify(folder).text() == "plan.json: format 9 of version '7.0'"


def test_the_command_and_the_script_give_the_same_account(tmp_path):
    """On a run of the real command."""
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "from zoo import Case, Spec\n"
        'case = Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),))\n'
        'NET = Spec(name="net", summary="s", source="s", build=lambda: abs, cases=(case,), dtypes="input")\n'
    )
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 0, told
    run = run_folder(told)
    code, told = conformance(tmp_path, "verify", str(run))
    assert (code, told) == (0, f"{run}: 1 cells: 1 pass; all sums hold\n")
    for folder, expected in ((run, 0), (tmp_path, 4)):
        done = subprocess.run(
            [sys.executable, "-I", str(FILE), str(folder)], capture_output=True, text=True, check=False
        )
        assert done.returncode == expected
        assert done.stdout == f"{verify(folder).text()}\n"

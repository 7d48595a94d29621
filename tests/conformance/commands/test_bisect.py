"""`conformance bisect`, with a stand-in for the installer: what is judged, said, kept and removed."""

import sys
from pathlib import Path

import pytest
import torch
from harness.command import ROOT
from harness.tiny import models

from conformance import cli
from conformance.commands import bisect
from conformance.errors import ExitCode, NotInstalledError, UsageError
from conformance.store import run_files

INSTALLED = str(torch.__version__).partition("+")[0]
CELL = "one[eager-fp32-cpu]"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder with a file of two models; the first is right, the second wrong."""
    models(tmp_path, one="same", one_more="same", wrong="lambda: lambda x: (x * 2).double()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    return tmp_path


@pytest.fixture
def stand_in(monkeypatch):
    """An installer that knows the torch of these tests alone: its environment is a folder, its Python this one."""
    made = []

    def make(folder, version, others):
        made.append((version, others))
        folder.mkdir()
        (folder / "a file").write_text("of an environment")
        if version == "2.99.0":
            raise NotInstalledError("torch 2.99.0 was not installed with Python 3: No | matching distribution found")
        return Path(sys.executable)

    monkeypatch.setattr(bisect, "make_environment", make)
    return made


def bisected(capsys, *arguments):
    """The exit code of a bisection, and what it printed."""
    code = cli.main(["bisect", *arguments])
    return code, capsys.readouterr().out


def runs(folder):
    return sorted(folder.glob(".conformance/bisect/*/*/runs/*"))


def test_what_was_judged_stays_beside_what_could_not_be_installed(project, stand_in, capsys):
    code, output = bisected(capsys, f"nets.py::{CELL}", "--torch", f"{INSTALLED},2.99.0", "--with", "einops")
    assert code == ExitCode.RED
    assert [version for version, _ in stand_in] == [INSTALLED, "2.99.0"]
    assert {others for _, others in stand_in} == {("einops",)}
    rows = [[cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]] for line in output.splitlines()]
    assert [row for row in rows if len(row) == 3][2:] == [
        [INSTALLED, "✓ PASS", "0"],
        ["2.99.0", "not judged", "torch 2.99.0 was not installed with Python 3: No / matching distribution found"],
    ]
    assert "fewer than two versions were judged" in output
    (run,) = runs(project)
    assert set(run_files.read(run).verdicts) == {CELL}
    assert f"runs stored in {run.parent.parent.parent}" in output
    assert [path.name for path in run.parent.parent.parent.iterdir()] == [INSTALLED]
    assert not list(project.rglob("environment"))


def test_a_green_cell_is_zero_its_environment_is_kept_if_asked_and_github_is_told_nothing(
    project, stand_in, capsys, monkeypatch
):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "summary.md"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    code, output = bisected(capsys, f"nets.py::{CELL}", "--torch", INSTALLED, "--keep")
    assert code == ExitCode.OK, output
    (kept,) = project.rglob("environment")
    assert [path.name for path in kept.iterdir()] == ["a file"]
    assert not (project / "summary.md").exists()
    assert stand_in


def test_a_red_cell_is_one_with_its_reason(project, stand_in, capsys):
    code, output = bisected(capsys, "nets.py::wrong[eager-fp32-cpu]", "--torch", INSTALLED)
    assert code == ExitCode.RED
    assert "✗ FAIL" in output
    assert "dtype  output, case typical: float64, should be float32" in output
    assert stand_in


def test_a_torch_that_is_not_the_one_asked_for_judges_nothing(project, stand_in, capsys):
    code, output = bisected(capsys, f"nets.py::{CELL}", "--torch", "2.4.9")
    assert code == ExitCode.RED
    assert f"torch 2.4.9 was asked for, and torch {torch.__version__} is installed" in output
    assert stand_in


def test_a_version_for_which_the_source_does_not_import_says_why(project, stand_in, capsys):
    (project / "nets.py").write_text("from pathlib import Path\nif list(Path('.conformance').glob('bisect')):\n"
        "    import nothing_of_that_name\n" + (project / "nets.py").read_text())  # fmt: skip
    code, output = bisected(capsys, f"nets.py::{CELL}", "--torch", INSTALLED)
    assert code == ExitCode.RED
    assert "not judged" in output
    assert "does not import: ModuleNotFoundError: No module named 'nothing_of_that_name'" in output
    assert stand_in


def test_an_interrupted_bisection_shows_what_is_judged_and_leaves_no_environment(project, monkeypatch, capsys):
    def make(folder, version, others):
        folder.mkdir()
        if version != INSTALLED:
            raise KeyboardInterrupt
        return Path(sys.executable)

    monkeypatch.setattr(bisect, "make_environment", make)
    code, output = bisected(capsys, f"nets.py::{CELL}", "--torch", f"{INSTALLED},2.99.0")
    assert code == ExitCode.INTERRUPTED
    assert "✓ PASS" in output
    assert len(runs(project)) == 1
    assert not list(project.rglob("environment"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("merge", "--torch=2.6.0"), "bisect merge: want MODEL[MODE-PRECISION-DEVICE], such as merge["),
        (("merge[eager-fp32-cpu]",), "the following arguments are required: --torch"),
        (("merge[eager-fp32-cpu]", "--torch=new"), "--torch new: want versions such as 2.6.0..2.15.0"),
        (("merg[eager-fp32-cpu]", "--torch=2.6.0"), "no model named 'merg'; did you mean merge"),
        (("ops::merg[eager-fp32-cpu]", "--torch=2.6.0"), "ops has no cell merg[eager-fp32-cpu]"),
    ],
)
def test_what_cannot_be_bisected_is_four_in_one_line_before_anything_is_installed(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bisect", *arguments]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert message in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_four(project, capsys):
    (project / ".conformance").write_text("a file")
    with pytest.raises(UsageError, match=r"\.conformance.* cannot be written"):
        bisect.bisect(f"nets.py::{CELL}", INSTALLED, Path(".conformance"))


@pytest.mark.parametrize(
    ("asked", "found", "same"),
    [
        ("2.6.0", "2.6.0+cpu", True),
        ("2.6.0+cpu", "2.6.0+cpu", True),
        ("2.6.0+cu118", "2.6.0+cpu", False),
        ("2.6.0", "2.6.1", False),
        ("2.6", "2.6.0", True),
    ],
)
def test_the_version_may_leave_open_for_what_torch_was_built(asked, found, same):
    assert bisect.is_version(asked, found) is same

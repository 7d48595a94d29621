"""A run tells which code judged it."""

import subprocess

import pytest

from conformance.commands import planning


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder with both packages, in place of those of this project."""
    for name in planning.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"{name} = 1\n")
    monkeypatch.setattr(planning, "_folder_of", lambda package: tmp_path / package)
    return tmp_path


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def committed(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "--short", "HEAD")


def test_the_revision_is_that_of_the_repository(packages):
    assert planning.describe_judge().revision == ""
    commit = committed(packages)
    assert planning.describe_judge().revision == commit
    (packages / "notes.txt").write_text("no code")
    assert planning.describe_judge().revision == commit
    (packages / "zoo" / "net.py").write_text("net = 1\n")
    assert planning.describe_judge().revision == f"{commit}+"


def test_packages_that_are_installed_below_a_repository_have_no_revision(packages):
    (packages / ".gitignore").write_text("conformance\nzoo\n")
    committed(packages)
    assert planning.describe_judge().revision == ""


def test_the_code_is_that_of_every_file_but_the_compiled_ones(packages):
    before = planning.describe_judge().code
    (packages / "zoo" / "__pycache__").mkdir()
    (packages / "zoo" / "__pycache__" / "net.pyc").write_text("compiled")
    assert planning.describe_judge().code == before
    (packages / "zoo" / "kernel.cpp").write_text("int main;")
    with_a_kernel = planning.describe_judge().code
    (packages / "zoo" / "kernel.cpp").write_text("int man;")
    assert len({before, with_a_kernel, planning.describe_judge().code}) == 3

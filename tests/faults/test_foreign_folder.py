"""A run folder from somebody else: it executes nothing, leads nowhere, and blocks nobody."""

import os
import shlex

import pytest
from harness.command import FP32, conformance, run_folder
from harness.stored_runs import NAMES, cell, plan_of, write

from conformance.errors import StoreError, UsageError
from conformance.judging.executor import Executor
from conformance.store import regular_file, run_files

SPEC = """
import pathlib, torch
from zoo import Case, Spec
pathlib.Path({canary!r}).write_text("executed")
case = Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),))
NET = Spec(name="net", summary="s", source="s", build=lambda: lambda x: x * 2, cases=(case,), dtypes="input")
"""


@pytest.fixture
def folder(tmp_path):
    """A complete run of three cells."""
    run = tmp_path / "run"
    run_files.create(run, plan_of(*NAMES))
    write(run, *NAMES)
    return run


@pytest.fixture
def elsewhere(tmp_path):
    """A file outside every run folder."""
    path = tmp_path / "elsewhere"
    path.write_text("precious")
    return path


FILES = (run_files.PLAN, run_files.LINES, run_files.DONE)


def others(path, elsewhere):
    """Puts what is no regular file in the place of a file, one kind after the other."""
    for make in (
        lambda: path.symlink_to(elsewhere),
        lambda: path.symlink_to(path.parent / "nowhere"),
        lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        path.unlink(missing_ok=True)
        make()
        yield
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("name", [*FILES, run_files.LOCK])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(folder, elsewhere, name):
    for _ in others(folder / name, elsewhere):
        for reader in (run_files.Writer,) if name == run_files.LOCK else (run_files.read, run_files.Writer):
            with pytest.raises(UsageError, match=f"{name}.* is no regular file"):
                reader(folder)
    assert elsewhere.read_text() == "precious"
    assert not (folder / "nowhere").exists()


def test_the_name_of_the_writer_is_neither_followed_nor_waited_for(folder, elsewhere):
    for _ in others(folder / run_files.OWNER, elsewhere):
        assert run_files.owner(folder) == ""
    (folder / run_files.OWNER).symlink_to(elsewhere)
    for name in (run_files.DONE, run_files.OWNER):
        (folder / f"{name}.draft").symlink_to(elsewhere)
    (folder / run_files.DONE).unlink()
    run_files.Writer(folder).close()
    assert run_files.read(folder).complete
    assert elsewhere.read_text() == "precious"


@pytest.mark.parametrize("name", FILES)
def test_a_huge_file_is_refused_unread(folder, name):
    with (folder / name).open("ab") as file:
        file.truncate(2**41)  # it takes no room on the disk
    with pytest.raises(UsageError, match=rf"{name} has {2**41} bytes; this version reads at most"):
        run_files.read(folder)


def test_references_lead_nowhere(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    place = folder / run_files.REFERENCES
    place.symlink_to(victim)
    with pytest.raises(StoreError, match="no folder but a link"):
        Executor(plan_of("a"), place)
    regular_file.remove(place)
    assert not place.is_symlink()
    assert [path.name for path in victim.iterdir()] == ["file"]


def test_an_account_of_a_hostile_folder_is_plain(tmp_path, capsys):
    run = tmp_path / "run\x1b[2J"
    run_files.create(run, plan_of("a"))
    (run / run_files.LINES).write_bytes(b"\x1b[2J\n")
    code, told = conformance(tmp_path, "show", str(run))
    assert code == 4
    assert "\x1b" not in told
    assert len(told.splitlines()) == 1


def test_a_run_of_somebody_else_executes_nothing_until_its_source_is_named(tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "nets.py").write_text(SPEC.format(canary=str(canary)))
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 0, told
    run = run_folder(told)
    for name in (run_files.LINES, run_files.DONE):
        (run / name).unlink()
    (run / "conftest.py").write_text(f"open({str(canary)!r}, 'w')")
    canary.unlink()
    for arguments in (["show", str(run)], ["run", "--resume", str(run)]):
        code, told = conformance(tmp_path, *arguments)
        assert code == (4 if "--resume" in arguments else 1), told
        assert not canary.exists()
    assert len(told.splitlines()) == 1
    words = shlex.split(told.partition("name its sources to allow it: conformance ")[2])
    assert words == ["run", str(tmp_path / "nets.py"), "--resume", str(run)]
    code, told = conformance(tmp_path, *words, "-n", "1")
    assert code == 0, told
    assert canary.read_text() == "executed"
    assert run_files.read(run).verdicts.keys() == {cell("net")}

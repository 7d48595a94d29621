"""A disk that is full or broken: what was stored stands, what could not be stored is said, and nobody is blamed."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from harness.command import FP32, ROOT, conformance, run_folder
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import StoreError
from conformance.records.convert import to_json
from conformance.store import regular_file, run_files

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def folder(tmp_path):
    """A run of three cells; one is judged."""
    run = tmp_path / "run"
    run_files.create(run, plan_of(*NAMES))
    write(run, "a")
    return run


def failing(monkeypatch, name, error=NO_SPACE, *, after=0):
    """Let a call of the system fail, from the given call on."""
    owner = Path if name == "mkdir" else os  # pathlib of Python 3.10 has an os.mkdir of its own
    calls, real = [], getattr(owner, name)

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) > after:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_verdict_that_cannot_be_stored_is_said_and_the_others_stand(folder, monkeypatch, call):
    writer = run_files.Writer(folder)
    before = (folder / run_files.LINES).read_bytes()
    with monkeypatch.context() as patch:
        failing(patch, call)
        with pytest.raises(
            StoreError, match=r"the verdict of b.* could not be stored in .*cells\.jsonl: No space left"
        ):
            writer.add(to_json(verdict("b")))
    assert (folder / run_files.LINES).read_bytes() == before
    with pytest.raises(StoreError, match="the verdict of b"):  # a disk that failed once is not trusted again
        writer.add(to_json(verdict("c")))
    writer.close()
    assert run_files.read(folder).missing == (cell("b"), cell("c"))
    write(folder, "b", "c")
    assert run_files.read(folder).complete


def test_a_line_of_which_a_part_was_written_is_cut(folder, monkeypatch):
    writer = run_files.Writer(folder)
    before = (folder / run_files.LINES).read_bytes()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
        failing(patch, "write", after=1)
        with pytest.raises(StoreError, match="No space left"):
            writer.add(to_json(verdict("b")))
    assert (folder / run_files.LINES).read_bytes() == before
    writer.close()


def test_a_line_that_cannot_even_be_cut_is_dropped_by_the_reader(folder, monkeypatch):
    writer = run_files.Writer(folder)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
        failing(patch, "write", after=1)
        failing(patch, "ftruncate")
        with pytest.raises(StoreError, match="No space left"):
            writer.add(to_json(verdict("b")))
    writer.close()
    assert run_files.read(folder).torn_bytes
    write(folder, "b", "c")
    assert run_files.read(folder).complete


def test_short_writes_lose_nothing(folder, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    write(folder, "b", "c")
    assert run_files.read(folder).verdicts == {cell(name): verdict(name) for name in NAMES}


def test_an_interrupt_leaves_a_whole_line_or_none(folder, monkeypatch):
    writer = run_files.Writer(folder)
    with monkeypatch.context() as patch:
        failing(patch, "fsync", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            writer.add(to_json(verdict("b")))
    writer.add(to_json(verdict("c")))
    writer.close()
    assert run_files.read(folder).missing == (cell("b"),)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_sums_that_cannot_be_written_leave_the_verdicts(folder, monkeypatch, call):
    write(folder, "b", "c")
    writer = run_files.Writer(folder)
    writer.add(to_json(verdict("c", "FAIL")))
    with monkeypatch.context() as patch:
        failing(patch, call, after=6 if call == "open" else 0)  # the writer reads three files twice first
        with pytest.raises(StoreError, match=r"run\.json cannot be written: No space left"):
            writer.close()
    assert not run_files.read(folder).complete
    assert run_files.read(folder).verdicts[cell("c")].status == "FAIL"
    run_files.Writer(folder).close()  # the lock is free
    assert run_files.read(folder).complete


def test_a_complete_run_to_which_nothing_can_be_added_is_left_as_it_is(folder, monkeypatch):
    write(folder, "b", "c")
    before = [(folder / name).read_bytes() for name in (run_files.LINES, run_files.DONE)]
    writer = run_files.Writer(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(NO_SPACE))
        with pytest.raises(
            StoreError, match=r"the verdict of c.* could not be stored in .*cells\.jsonl: No space left"
        ):
            writer.add(to_json(verdict("c", "FAIL")))
    writer.close()
    assert [(folder / name).read_bytes() for name in (run_files.LINES, run_files.DONE)] == before
    assert run_files.read(folder).complete


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "replace"])
def test_a_run_that_cannot_be_made_leaves_no_folder(tmp_path, monkeypatch, call):
    with monkeypatch.context() as patch:
        failing(patch, call)
        with pytest.raises(StoreError, match="No space left"):
            run_files.create(tmp_path / "run", plan_of("a"))
    assert not (tmp_path / "run" / run_files.PLAN).exists()


def test_a_folder_without_room_for_a_lock_is_said(folder, monkeypatch):
    (folder / run_files.LOCK).unlink()
    failing(monkeypatch, "open")
    with pytest.raises(run_files.UsageError, match="No space left"):
        run_files.Writer(folder)


@pytest.mark.parametrize("write_it", [regular_file.make_folder, lambda path: regular_file.write_whole(path, b"x")])
def test_what_cannot_be_made_is_named(tmp_path, write_it):
    with pytest.raises(StoreError, match=r"nowhere/file(\.draft)? cannot be"):
        write_it(tmp_path / "nowhere" / "file")


MODELS = """
import torch
from zoo import Case, Spec

def spec(name):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=lambda: lambda x: x * 2, cases=(case,), dtypes="input")

SPECS = [spec(name) for name in ("one", "two", "three", "four")]
ONE, TWO, THREE, FOUR = SPECS
"""


def test_a_command_that_runs_out_of_room_keeps_its_verdicts_and_goes_on_when_there_is_room(tmp_path):
    """The system refuses to let files grow: the plan fits, and a part of the verdicts."""
    (tmp_path / "nets.py").write_text(MODELS)
    code, told = conformance(tmp_path, "run", "nets.py", *FP32, "-n", "1")
    assert code == 0, told
    stored = run_folder(told)
    whole = (stored / run_files.LINES).read_bytes()
    first = whole.index(b"\n") + 1
    for name in (run_files.LINES, run_files.DONE):
        (stored / name).unlink()

    def bounded():
        resource.setrlimit(resource.RLIMIT_FSIZE, (first + 100, first + 100))

    command = [sys.executable, "-m", "conformance", "run", "nets.py", "--resume", str(stored), "-n", "1"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, preexec_fn=bounded, timeout=240, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "Traceback" not in output
    assert "could not" in output or "cannot be" in output
    contents = run_files.read(stored)
    assert {v.status for v in contents.verdicts.values()} <= {"PASS"}  # nobody is blamed
    assert contents.missing
    code, told = conformance(tmp_path, "run", "nets.py", "--resume", str(stored), "-n", "1")
    assert code == 0, told
    assert run_files.read(stored).complete

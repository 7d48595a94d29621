"""A disk that is full or broken: what was stored stands, what could not be stored is said, and nobody is blamed."""

import errno
import os
from pathlib import Path

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.errors import StoreError
from conformance.records.convert import to_json
from conformance.store import run_files

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


@pytest.mark.parametrize("call", ["open", "write", "replace"])
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

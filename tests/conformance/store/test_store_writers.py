"""One process at a time writes a run folder; a dead one is no hindrance."""

import multiprocessing
import os
import signal

import pytest
from harness.stored_runs import cell, write

from conformance.errors import UsageError
from conformance.store import run_files

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def other_writer(folder):
    """Another process that writes the folder."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_write_forever, args=(folder, theirs))
    process.start()
    assert ours.poll(30)
    ours.recv()
    yield process
    process.kill()
    process.join()


def _write_forever(folder, pipe):
    writer = run_files.Writer(folder)
    pipe.send("writes")
    signal.pause()
    writer.close()


def _try_to_write(folder, pipe):
    try:
        run_files.Writer(folder).close()
        pipe.send("wrote")
    except UsageError as problem:
        pipe.send(str(problem))


def attempt(folder):
    """How another process fares that wants to write."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_try_to_write, args=(folder, theirs))
    process.start()
    assert ours.poll(30)
    process.join()
    return ours.recv()


def test_the_owner_of_a_run_is_the_process_that_writes_it(folder):
    writer = run_files.Writer(folder)
    assert run_files.owner(folder) == str(os.getpid())
    writer.close()


def test_a_second_writer_is_refused_and_told_the_first_until_that_is_done(folder):
    writer = run_files.Writer(folder)
    with pytest.raises(UsageError, match=f"is being written by another run .process {os.getpid()}"):
        run_files.Writer(folder)
    assert f"process {os.getpid()}" in attempt(folder)
    writer.close()
    assert attempt(folder) == "wrote"


def test_a_writer_is_refused_while_another_process_writes(folder, other_writer):
    with pytest.raises(UsageError, match=f"is being written by another run .process {other_writer.pid}"):
        run_files.Writer(folder)
    assert run_files.owner(folder) == str(other_writer.pid)


def test_a_killed_writer_does_not_keep_the_run(folder, other_writer):
    os.kill(other_writer.pid, signal.SIGKILL)
    other_writer.join(30)
    assert run_files.owner(folder) == str(other_writer.pid)
    write(folder, "a")
    assert cell("a") in run_files.read(folder).verdicts
    assert run_files.owner(folder) == ""


def test_files_of_a_dead_writer_are_no_lock(folder):
    (folder / run_files.LOCK).write_text("4194303")
    (folder / run_files.OWNER).write_text("4194303")
    write(folder, "a")
    assert cell("a") in run_files.read(folder).verdicts


def test_a_refused_writer_leaves_the_lines_alone(folder, other_writer):
    torn = b"0 torn"
    (folder / run_files.LINES).write_bytes(torn)
    with pytest.raises(UsageError, match="is being written"):
        run_files.Writer(folder)
    assert (folder / run_files.LINES).read_bytes() == torn

"""Whatever ends the run, or the process under which its cell runs: nothing of the cell is left, though it hangs."""

import os
import signal

import pytest
from harness.hanging_runs import run_of, started, told, write_hanging
from harness.processes import outlives

from conformance.process import process_table

HANGING_COMPILER = """#!/bin/sh
sleep 3600 &
echo $$ $! $PPID > {file}.part
mv {file}.part {file}
wait
"""


def left(pids, seconds=20.0):
    """Which of some processes are still there; they are killed."""
    found = [pid for pid in pids if outlives(pid, seconds)]
    process_table.kill(found)
    return found


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_nothing_is_left_when_the_run_ends_by_a_signal(tmp_path, name):
    with run_of(tmp_path, write_hanging(tmp_path), "-n1") as run:
        pids = told(tmp_path / "pids")
        run.send_signal(getattr(signal, name))
        run.wait(30)
        assert left(pids) == []


def test_nothing_is_left_when_a_worker_of_the_run_is_killed(tmp_path):
    (tmp_path / "second").mkdir()
    with run_of(tmp_path, write_hanging(tmp_path), write_hanging(tmp_path / "second", "other"), "-n2") as run:
        cell, server, *others = told(tmp_path / "pids")
        worker = process_table.parent_of(server)
        assert worker != run.pid
        os.kill(worker, signal.SIGKILL)
        assert left([cell, server, *others]) == []


def test_a_compiler_that_hangs_while_the_fork_server_prepares_dies_with_the_run(tmp_path):
    compiler, file = tmp_path / "g++", tmp_path / "compiler"
    compiler.write_text(HANGING_COMPILER.format(file=file))
    compiler.chmod(0o755)
    with started(tmp_path, "run", "merge", "--precision=fp32", "--device=cpu", "-n1", CXX=str(compiler)) as run:
        pids = told(file)
        run.kill()
        assert left(pids) == []

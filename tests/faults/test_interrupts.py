"""A signal at any moment: the command leaves within seconds, without a traceback, and says how to go on."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.command import FP32, ROOT, conformance, started, stored_runs
from harness.processes import outlives
from harness.tiny import models

SECONDS = 5.0  # as docs/reliability.md promises
PATIENCE = 20.0  # beyond it, for a loaded machine
INTERRUPTED_INSIDE = """
import sys
from conformance.commands import interrupts

with interrupts.answer_signals() as ending:
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
sys.exit(ending.code)
"""
HANGING = "once(lambda: (Path('in').write_text(str(os.getpid())), time.sleep(600)))"


def read_until(process, text, seconds=200):
    """What a process prints until a text comes."""
    seen, until = "", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < until, seen
        assert process.poll() is None, seen
        if select.select([process.stdout], [], [], 0.1)[0]:
            seen += os.read(process.stdout.fileno(), 65536).decode(errors="replace")
    return seen


def wait_for(path, seconds=200):
    """The text of a file that a cell writes."""
    until = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return path.read_text()


def left_quietly(process):
    """The output of a process that has been signalled; it ends as promised."""
    began = time.monotonic()
    output, _ = process.communicate(timeout=SECONDS + PATIENCE)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert "KeyboardInterrupt" not in output
    assert "INTERNALERROR" not in output
    return output, time.monotonic() - began


def answers(process, number):
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"SigCgt:\t(\w+)", status)[1], 16)
    return bool(caught >> (number - 1) & 1)


def to_all(process, number):
    """Signal a process and its group, as a terminal does."""
    os.killpg(process.pid, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_cells_hang(tmp_path, number):
    source = models(tmp_path, done="same", hanging=HANGING)
    process = started(tmp_path, "run", source, *FP32, "-n2", "-v")
    read_until(process, "done[eager-fp32-cpu]")
    cell = int(wait_for(tmp_path / "in"))
    to_all(process, number)
    output, _ = left_quietly(process)
    (stored,) = stored_runs(tmp_path)
    assert "2 cells: 1 pass, 1 notrun" in output
    assert f"conformance run {tmp_path / source} --resume {stored}" in output
    assert not outlives(cell)


def test_in_the_process_that_judges_alone_and_twice(tmp_path):
    source = models(tmp_path, done="same", hanging=HANGING)
    process = started(tmp_path, "run", source, *FP32, "-n1")
    wait_for(tmp_path / "in")
    for _ in range(5):
        to_all(process, signal.SIGINT)
    output, _ = left_quietly(process)
    assert "2 cells: 1 pass, 1 notrun" in output
    (stored,) = stored_runs(tmp_path)
    (tmp_path / source).write_text((tmp_path / source).read_text().replace("600", "0"))
    (tmp_path / "in").unlink()
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored))
    assert code == 4, output
    assert f"{tmp_path / source} has changed since it was planned" in output


PAGE = 4096  # bytes that the smallest pipe holds


@pytest.fixture
def nearly_full():
    """The writing end of a pipe that nobody reads, and that takes some hundred bytes more."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PAGE)
    os.write(writing, b"x" * (PAGE - 300))
    yield writing
    os.close(reading)
    os.close(writing)


def stuck(folder, nearly_full, errors):
    """A run that has judged everything, and waits for somebody who reads its report; and its folder."""
    process = started(folder, "run", models(folder, one="same"), *FP32, "-n1", stdout=nearly_full, stderr=errors)
    until = time.monotonic() + 100
    while not any('"one[' in file.read_text() for file in folder.glob(".conformance/runs/*/cells.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(1.0)
    assert process.poll() is None
    return process, *stored_runs(folder)


@pytest.mark.parametrize(("number", "both"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_while_nobody_reads_what_it_prints(tmp_path, nearly_full, number, both):
    process, stored = stuck(tmp_path, nearly_full, nearly_full if both else subprocess.DEVNULL)
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(SECONDS + PATIENCE) == 2
    assert time.monotonic() - began < SECONDS + 2
    assert "1 cell: 1 pass" in conformance(tmp_path, "show", str(stored))[1]


def test_a_second_signal_ends_it_at_once(tmp_path, nearly_full):
    process, stored = stuck(tmp_path, nearly_full, nearly_full)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)  # it still tries to say what is judged
    process.send_signal(signal.SIGTERM)
    assert process.wait(2.0) == 2
    assert "1 cell: 1 pass" in conformance(tmp_path, "show", str(stored))[1]


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0])
def test_while_it_starts_and_plans(tmp_path, delay):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    process = started(tmp_path, "run", "slow.py", *FP32)
    while not answers(process, signal.SIGTERM):  # the interpreter itself starts first
        time.sleep(0.01)
    time.sleep(delay)
    to_all(process, signal.SIGINT)
    output, _ = left_quietly(process)
    assert output in ("", "conformance: interrupted\n")
    assert stored_runs(tmp_path) == []


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.5])
def test_while_its_workers_start(tmp_path, delay):
    process = started(tmp_path, "run", models(tmp_path, one="same", hanging=HANGING), *FP32, "-n3")
    read_until(process, "this takes")
    time.sleep(delay)
    to_all(process, signal.SIGINT)
    output, _ = left_quietly(process)
    assert "--resume" in output


def test_inside_code_that_is_executed_from_a_text(tmp_path):
    """CPython remembers such an interrupt even if it is answered; torch's imports execute many texts."""
    (tmp_path / "program.py").write_text(INTERRUPTED_INSIDE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "program"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2


def test_while_it_measures(tmp_path):
    source = models(tmp_path, one="same", two="same")
    process = started(tmp_path, "run", source, "--speed", "--mode=eager", "--precision=fp32", "--device=cpu", "-n1")
    read_until(process, "taking")
    to_all(process, signal.SIGINT)
    output, _ = left_quietly(process)
    (stored,) = stored_runs(tmp_path)
    assert output.index(f"interrupted: conformance run {tmp_path / source} --resume {stored}") < output.index(
        "2 cells: 2 pass"
    )
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored))
    assert code == 0, output
    assert re.search(r"one +fp32 +✓ \d +\S", output)


def test_a_signal_that_the_person_ignores_is_ignored(tmp_path):
    source = models(tmp_path, one="once(lambda: (Path('in').write_text('x'), time.sleep(2)))")
    process = started(tmp_path, "run", source, *FP32, "-n1", prefix=("nohup",))
    wait_for(tmp_path / "in")
    to_all(process, signal.SIGHUP)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "1 cell: 1 pass" in output

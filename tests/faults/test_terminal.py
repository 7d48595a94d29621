"""What a person sees on a terminal: lines that fit, colours, and nothing of pytest's own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from harness.command import COMMAND, FP32, OF_PYTEST, ROOT
from harness.stored_runs import plan_of, write
from harness.tiny import models

from conformance.store import run_files

COLUMNS = 60
ERASE = "\r\x1b[K"


def on_terminal(folder, *command, **environment):
    """What a command prints on a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith((OF_PYTEST, "COLUMNS"))}
    env = {**inherited, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while part := _read(ours):
            printed += part
    os.close(ours)
    return process.returncode, printed.decode().replace("\r\n", "\n")


def elsewhere(folder, *command):
    """What a command prints where there is no terminal."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def _read(descriptor):
    try:
        return os.read(descriptor, 2**16)
    except OSError:  # the other end is closed
        return b""


@pytest.fixture
def source(tmp_path):
    """A file with a model that passes, one that takes its time, and one that raises an error."""
    slow = "once(lambda: __import__('time').sleep(2))"
    return models(tmp_path, one="same", slow_model_with_a_name_that_is_rather_long=slow, red="once(lambda: 1 / 0)")


def test_the_line_that_changes_fits_and_leaves_nothing_behind(tmp_path, source):
    code, printed = on_terminal(tmp_path, *COMMAND, "run", source, *FP32, "-n2")
    assert code == 1, printed
    progress = [part for part in printed.split(ERASE) if "of 3 cells done" in part]
    assert progress
    assert max(len(part.partition("\n")[0]) for part in progress) < COLUMNS
    assert "bringing up nodes" not in printed
    paragraphs = [line for line in printed.splitlines() if line.startswith(("· ", "    ", "\x1b[31m✗ red["))]
    assert paragraphs
    assert max(len(re.sub(r"\x1b\[\d*m", "", line)) for line in paragraphs) <= COLUMNS


@pytest.mark.parametrize(
    ("options", "environment", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color=never"], {}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_there_are_colours_unless_somebody_forbids_them(tmp_path, options, environment, coloured):
    run_files.create(tmp_path / "run", plan_of("a"))
    write(tmp_path / "run", "a")
    show = (*COMMAND, "show", "run")
    _, printed = on_terminal(tmp_path, *show, *options, **environment)
    assert ("\x1b[32m✓ 0.25\x1b[0m" in printed) == coloured, printed
    if not environment:  # where there is no terminal, they must be asked for
        assert ("\x1b[" in elsewhere(tmp_path, *show, *options).stdout) == ("--color=always" in options)


CHECK = """
import time
import torch
import conformance

seconds = [3.0]

def model(x):
    if x.dtype == torch.float32:  # not the fifty calls of the reference
        time.sleep(seconds.pop() if seconds else 0.0)
    return x * 2

report = conformance.check(model, torch.randn(3), modes="eager", precisions="fp32")
print(report.cells[0].status)
"""


def test_check_shows_progress_on_a_terminal_and_none_elsewhere(tmp_path):
    (tmp_path / "script.py").write_text(CHECK)
    command = (COMMAND[0], "-W", "ignore", "script.py")
    _, printed = on_terminal(tmp_path, *command)
    assert "0 of 1 cell done" in printed
    assert printed.endswith(f"{ERASE}PASS\n")
    done = elsewhere(tmp_path, *command)
    assert (done.stdout, done.stderr) == ("PASS\n", "")

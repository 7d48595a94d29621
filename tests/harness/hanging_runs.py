"""Runs whose cell hangs, in native code that holds the interpreter's lock, with processes of its own."""

import contextlib
import os
import signal
import time
from pathlib import Path

from harness import command
from harness.spec_files import MODEL

HANG = """
import ctypes, os, subprocess, sys
import torch

def hang(*args):
    words = [sys.executable, "-c", "import time; time.sleep(3600)"]
    near, far = subprocess.Popen(words), subprocess.Popen(words, start_new_session=True)
    with open({file!r} + ".part", "w") as told:
        told.write(" ".join(map(str, (os.getpid(), os.getppid(), near.pid, far.pid))))
    os.replace({file!r} + ".part", {file!r})
    ctypes.PyDLL(None).sleep(3600)
"""


def write_hanging(folder, name="hanging"):
    """Write a file with one model that hangs, and names its processes in `folder`/pids; returns the file's path."""
    code = HANG.format(file=str(folder / "pids"))
    spec = MODEL.format(name=name, expectations="").replace("lambda: torch.nn.Identity()", "lambda: hang")
    (folder / f"{name}.py").write_text(code + spec)
    return str(folder / f"{name}.py")


@contextlib.contextmanager
def started(folder, *arguments, **environment):
    """The command at work in a folder, in a session of its own, which does not outlive the test."""
    with (folder / "printed").open("wb") as printed:
        process = command.started(folder, *arguments, stdout=printed, stderr=printed, **environment)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_of(folder, *sources, **environment):
    """`conformance run` of some sources, eager and in fp32."""
    return started(folder, "run", *sources, *command.FP32, "--timeout=600", **environment)


def told(file: Path, seconds=120.0):
    """The process ids that a file names, as soon as it is there."""
    until = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < until, f"no {file.name} within {seconds:g} s"
        time.sleep(0.05)
    return list(map(int, file.read_text().split()))

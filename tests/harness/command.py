"""The command, run in a folder of a test."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FP32 = ("--mode=eager", "--precision=fp32", "--device=cpu", "--no-speed")
COMMAND = (sys.executable, "-m", "conformance")
OF_PYTEST = "PYTEST_"  # variables of the pytest that runs the test


def conformance(folder, *arguments, timeout=240, **environment):
    """Run the command in a folder; returns its exit code and what it printed."""
    process = started(folder, *arguments, **environment)
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, output


def started(folder, *arguments, prefix=(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **environment):
    """Start the command in a folder, in a process group of its own, with further environment variables.

    Words before the command may be a shell that closes a stream and then runs it. Returns the process.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))  # installed or not
    env = {**environment_of(path), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [*prefix, *COMMAND, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def python(folder, *arguments, path=ROOT):
    """What Python prints in a folder of a person, warnings left out; `path` is the variable PYTHONPATH."""
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    env = environment_of(path)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def environment_of(path):
    """The environment variables of a command that a test starts. As in a CI, no verdict of an earlier test is kept."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_PYTEST)}
    return {**inherited, "CI": "true", "PYTHONPATH": str(path), "COLUMNS": "200"}


def run_folder(output):
    """The folder that the last line of a report names."""
    return Path(re.search(r"run stored in (\S+)", output)[1])


def stored_runs(folder):
    """The run folders below the working folder of a test."""
    return sorted((folder / ".conformance" / "runs").glob("*"))

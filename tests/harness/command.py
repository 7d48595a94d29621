"""The command, run in a folder of a test."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FP32 = ("--mode=eager", "--precision=fp32", "--device=cpu", "--no-speed")


def conformance(folder, *arguments, timeout=240, **environment):
    """Run the command in a folder; returns its exit code and what it printed."""
    command = [sys.executable, "-m", "conformance", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # this checkout, installed or not
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    return done.returncode, done.stdout + done.stderr


def run_folder(output):
    """The folder that the last line of a report names."""
    return Path(re.search(r"run stored in (\S+)", output)[1])

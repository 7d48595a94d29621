"""Fresh interpreters, and processes that should be gone."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
FOLDERS = (str(TESTS.parent), str(TESTS))  # the project first: `conformance` is also a folder of the tests


def printed(script, **environment):
    """What a script prints in a fresh interpreter, as JSON; it can import the harness."""
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def fresh(script, *arguments):
    """The words that a script prints in a fresh interpreter, in the folder of the project."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=FOLDERS[0], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def outlives(process, seconds=10.0):
    """Whether a process still runs after so long; a zombie does not."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    try:
        return not select.select([handle], [], [], seconds)[0]
    finally:
        os.close(handle)

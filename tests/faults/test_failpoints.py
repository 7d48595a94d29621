"""Every write, rename, start, message and kill of the runner fails once, and is its last once; the verdicts stay.

A thinned sweep runs with the tests. `nox -s failpoints` tries every call.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.command import FP32, ROOT

from conformance.commands.stored import exit_code
from conformance.store import run_files

EVERY = int(os.environ.get("FAILPOINTS_EVERY", "55"))  # of so many calls, one is tried
SHARDS = 2  # parts of the sweep, which run at the same time on several workers
SCRIPT = Path(__file__).parent.parent / "harness" / "failpoints.py"
MODELS = """
import torch
from zoo import Case, Spec

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="input")

RIGHT = spec("right", lambda: lambda x: x * 2)
RANDOM = spec("random", lambda: lambda x: x + torch.rand_like(x))
"""


def command(folder, *arguments, action="count", number=0):
    """Run the command with a failpoint; returns its exit code, its output and the calls that it made."""
    log = folder / "calls"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPT), action, str(number), str(log), *arguments, "-n", "1"]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr, log.read_text().split()


def runs(folder):
    """The run folders in a folder that have a plan."""
    return [path.parent for path in folder.glob(f".conformance/runs/*/{run_files.PLAN}")]


def statuses(run):
    """The status of each cell with a verdict."""
    return {cell: verdict.status for cell, verdict in run_files.read(run).verdicts.items()}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The calls of an undisturbed run, its exit code and its verdicts."""
    folder = tmp_path_factory.mktemp("clean")
    (folder / "nets.py").write_text(MODELS)
    code, told, calls = command(folder, "run", "nets.py", *FP32)
    (run,) = runs(folder)
    assert code == exit_code(run_files.read(run)) == 1, told
    assert statuses(run) == {"right[eager-fp32-cpu]": "PASS", "random[eager-fp32-cpu]": "UNSTABLE"}
    assert {"open", "write", "fsync", "replace", "mkdir", "unlink", "spawn", "send"} <= set(calls)
    return calls, code, statuses(run)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("action", ["fail", "kill"])
def test_whatever_call_fails_or_is_the_last_one_the_verdicts_are_the_same(tmp_path, clean, action, shard):
    calls, code, verdicts = clean
    problems = []
    for number in range(1, len(calls) + 1)[EVERY // 7 :: EVERY][shard::SHARDS]:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "nets.py").write_text(MODELS)
        try:
            check(folder, action, number, code, verdicts)
        except AssertionError as problem:
            problems.append(f"{action} at call {number}, {calls[number - 1]}: {problem}")
        shutil.rmtree(folder)
    assert problems == []


def check(folder, action, number, code, verdicts):
    """Disturb a run at one call, and resume it."""
    left, told, _ = command(folder, "run", "nets.py", *FP32, action=action, number=number)
    assert "Traceback" not in told, told
    assert left != 0, told
    for run in runs(folder):
        assert statuses(run).items() <= verdicts.items(), f"a failure of the machine is blamed: {statuses(run)}"
        assert exit_code(run_files.read(run)) == 1
        left, told, _ = command(folder, "run", "nets.py", "--resume", str(run))
        assert left == code, told
        assert statuses(run) == verdicts
        assert (run_files.read(run).complete, exit_code(run_files.read(run))) == (True, code)

"""Two revisions side by side: counters decide, clocks never; and what cannot be compared is named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.processes import FOLDERS
from harness.repositories import LEAN, NETS, WASTEFUL, commit, git, new_repository

from conformance.against import comparison
from conformance.exit_codes import ExitCode
from conformance.records.tasks import PlanRequest

UNSTABLE = "import dataclasses\nRED = dataclasses.replace(NET, name='red', build=lambda: torch.rand_like)\n"


@pytest.fixture
def repository(tmp_path):
    return new_repository(tmp_path)


def compare(folder, revision, capsys, *, times=False, modes=("eager",)):
    request = PlanRequest((str(folder / "nets.py"),), modes, ("fp32",), ("cpu",))
    code = comparison.compare(request, revision, times=times)
    return code, capsys.readouterr().out


def row(output, word):
    return next(line.split() for line in output.splitlines() if f"  {word} " in line)


def test_more_bytes_are_red_and_less_are_not(repository, capsys):
    lean = commit(repository, nets=NETS, layers=LEAN)
    wasteful = commit(repository, layers=WASTEFUL)
    code, output = compare(repository, "HEAD~1", capsys)
    assert code == ExitCode.RED, output
    assert f"against HEAD~1 ({lean})" in output
    assert "1 cell compared, 4 different counters" in output
    assert row(output, "saved bytes") == ["net[eager-fp32-cpu]", "saved", "bytes", "48", "96", "✗", "more"]
    commit(repository, layers=LEAN)
    code, output = compare(repository, wasteful, capsys)
    assert code == ExitCode.OK, output
    assert row(output, "saved bytes") == ["net[eager-fp32-cpu]", "saved", "bytes", "96", "48", "✓", "less"]
    assert git(repository, "status", "--porcelain", "--ignored").replace("?? ", "!! ") in ("", "!! __pycache__/")
    assert git(repository, "worktree", "list").count("\n") == 0


def test_what_is_gone_red_or_of_another_case_is_red_and_what_is_new_is_named(repository, capsys):
    four = NETS + 'GONE = spec("gone")\nWIDER = spec("wider")\nRED = spec("red")\n'
    commit(repository, nets=four, layers=LEAN)
    commit(repository, nets=NETS + 'WIDER = spec("wider", 5)\nFRESH = spec("fresh")\n' + UNSTABLE)
    code, output = compare(repository, "HEAD~1", capsys)
    assert code == ExitCode.RED, output
    assert "1 cell compared, 0 different counters" in output
    assert "✗ gone: gone" in output
    assert "✗ wider: its first case was (4, 3) float32, now it is (5, 3) float32" in output
    assert "✗ red[eager-fp32-cpu]: passed, now UNSTABLE  output: two identical float64 runs differ" in output
    assert "· fresh: new" in output


def test_a_cell_that_did_not_pass_before_is_named_and_is_not_red(repository, capsys):
    commit(repository, nets=NETS + UNSTABLE, layers=LEAN)
    commit(repository, nets=NETS + 'RED = spec("red")\n')
    code, output = compare(repository, "HEAD~1", capsys)
    assert code == ExitCode.OK, output
    assert "1 cell compared, 0 different counters" in output
    assert "· red[eager-fp32-cpu]: was UNSTABLE, now PASS; not compared" in output
    assert "✗" not in output


def test_compiled_graphs_are_counted(repository, capsys):
    commit(repository, nets=NETS, layers=LEAN)
    broken = "import torch\n\ndef forward(x):\n    y = x.exp()\n    torch._dynamo.graph_break()\n    return y * 2\n"
    commit(repository, layers=broken)
    code, output = compare(repository, "HEAD~1", capsys, modes=("compiled",))
    assert code == ExitCode.RED, output
    assert row(output, "graphs") == ["net[compiled-fp32-cpu]", "graphs", "1", "2", "✗", "more"]
    assert row(output, "graph breaks") == ["net[compiled-fp32-cpu]", "graph", "breaks", "0", "1", "✗", "more"]


def test_times_are_shown_and_never_decide(repository, capsys):
    before = commit(repository, nets=NETS, layers=LEAN)
    slow = LEAN.replace("    return", "    for _ in range(100_000):\n        pass\n    return")
    commit(repository, layers=slow)
    code, output = compare(repository, "HEAD~1", capsys, times=True)
    assert code == ExitCode.OK, output
    assert f"Times of forward and backward, compared with {before}. They never decide." in output
    timed = [line for line in output.splitlines() if line.startswith("net[eager-fp32-cpu]")]
    assert len(timed) == 1, output
    reasons = ("▼", "too noisy", "too slow", "control failed", "no steady state")
    assert any(word in timed[0] for word in reasons), output


def test_an_interrupt_leaves_no_folder_and_no_process(repository, tmp_path_factory):
    commit(repository, nets=NETS, layers=LEAN)
    code = (
        "import sys\nfrom conformance.against import comparison\nfrom conformance.records.tasks import PlanRequest\n"
        "sys.exit(comparison.compare(PlanRequest(('nets.py',)), 'HEAD'))"
    )
    scratch = tmp_path_factory.mktemp("scratch")
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(FOLDERS)}
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, cwd=repository, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline().startswith("against HEAD")
        while len(started := children(running.pid)) < 2:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == ExitCode.INTERRUPTED
    assert not list(scratch.glob("conformance-against-*"))
    until = time.monotonic() + 30  # a worker that was just being started ends when it finds its parent gone
    while left := [pid for pid in started if lives(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

"""The one command for a GPU: steps in order, each once, one that is interrupted again."""

import importlib.util
import json
import sys

import pytest

from benchmarks import gpu_run

NOTE = "import sys; open(sys.argv[1], 'a').write('x'); print('noted'); sys.exit(int(sys.argv[2]))"
WAIT_ONCE = """
import pathlib, sys, time
begun = pathlib.Path(sys.argv[1])
if not begun.exists():
    begun.write_text("x")
    time.sleep(60)
"""


@pytest.fixture(name="call")
def _call(monkeypatch, tmp_path, capsys):
    """Call the command for so many seconds: exit code, steps by name and what was printed."""
    monkeypatch.setattr(gpu_run, "GRACE", 0.5)
    python = [sys.executable, "-c"]
    commands = {
        "first": [*python, NOTE, str(tmp_path / "first"), "0"],
        "slow": [*python, WAIT_ONCE, str(tmp_path / "begun")],
        "red": [*python, NOTE, str(tmp_path / "red"), "1"],
    }
    monkeypatch.setattr(gpu_run, "commands", lambda *_: commands)

    def call(seconds):
        monkeypatch.setattr(sys, "argv", ["gpu_run.py", str(tmp_path / "results"), "--seconds", str(seconds)])
        code = gpu_run.main()
        steps = json.loads((tmp_path / "results" / "steps.json").read_text())
        return code, {step["name"]: step["code"] for step in steps}, capsys.readouterr().out

    return call


def test_a_second_call_does_what_the_first_had_no_time_for(call, tmp_path):
    code, steps, printed = call(3)
    assert (code, steps) == (1, {"first": 0, "slow": None})
    assert "slow   unfinished" in printed
    code, steps, printed = call(60)
    assert (code, steps) == (1, {"first": 0, "slow": 0, "red": 1})
    assert (tmp_path / "first").read_text() == "x"  # done once
    assert "━━ first ━━\n\nnoted" in printed
    assert "red    exit code 1" in printed
    assert (tmp_path / "results" / "tables.txt").read_text() in printed


def test_a_step_that_starts_over_begins_first_or_not_at_all(call, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_run, "WHOLE", {"first": 1000.0, "slow": 1000.0})
    _, steps, _ = call(3)
    assert steps == {"first": 0, "slow": None, "red": 1}
    assert not (tmp_path / "begun").exists()
    call(3)
    assert (tmp_path / "begun").exists()


def test_the_commands_resume_the_run_that_was_begun_and_every_file_and_module_of_them_exists(tmp_path):
    fresh = gpu_run.commands(tmp_path, "cuda", ["merge"])
    assert list(fresh) == ["tests", "probes", "matrix", "graphs", "checkerboard", "meter", "claims", "bench"]
    assert fresh["matrix"][3:] == ["run", "merge", "--device", "cuda", "--store", str(tmp_path / "matrix")]
    assert "graphed" in fresh["graphs"]
    begun = tmp_path / "matrix" / "runs" / "20260101-000000-abcd"
    begun.mkdir(parents=True)
    assert gpu_run.commands(tmp_path, "cuda", ["merge"])["matrix"][3:] == ["run", "--resume", str(begun)]
    assert "graphed" not in gpu_run.commands(tmp_path, "cpu", [])["graphs"]
    commands = gpu_run.commands(tmp_path, "cuda", [])
    assert all((gpu_run.ROOT / word).is_file() for word in commands["tests"] if word.endswith(".py"))
    modules = {command[command.index("-m") + 1] for command in commands.values()}
    assert all(importlib.util.find_spec(module) for module in modules)

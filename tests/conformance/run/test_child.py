"""How a process may end, and that nothing of it outlives its ending."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import planning
import pytest

from conformance.run import child

PATIENCE = 120.0
SLEEPER = [sys.executable, "-c", "import time; time.sleep(3600)"]


# Targets: run in a child, found there by this module's name.


def echo(task, enter_phase):
    enter_phase("thinking")
    return {"task": task, "pid": os.getpid(), "session": os.getsid(0), "main": sys.modules["__main__"].__name__}


def leave(task, enter_phase):
    enter_phase("leaving")
    os._exit(task["code"])


def leave_after_answer(task, enter_phase):
    pipe_of(enter_phase).send_bytes(b'{"answer": 7}')
    os._exit(task["code"])


def die(task, enter_phase):
    enter_phase("dying")
    os.kill(os.getpid(), task["signal"])


def raise_something(task, enter_phase):
    enter_phase("raising")
    raise LookupError("nobody catches this")


def hang(task, enter_phase):
    enter_phase("hanging")
    signal.pause()


def ignore_everything_and_hang(task, enter_phase):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang(task, enter_phase)


def answer_and_stay(task, enter_phase):
    pipe_of(enter_phase).send_bytes(b'{"answer": 7}')
    signal.pause()


def garbage(task, enter_phase):
    pipe_of(enter_phase).send_bytes(bytes.fromhex(task["bytes"]))
    signal.pause()


def close_pipe(task, enter_phase):
    pipe_of(enter_phase).close()
    signal.pause()


def talk(task, enter_phase):
    os.write(1, b"{}\n" * 1000)
    os.write(2, b"noise")
    sys.stdin.read()
    return "done"


def no_json(task, enter_phase):
    return {1, 2}


def not_a_number(task, enter_phase):
    return float("nan")


def with_grandchildren(task, enter_phase):
    """Start processes in this session, in a session of their own, and one whose parent is gone."""
    near = subprocess.Popen(SLEEPER)
    far = subprocess.Popen(SLEEPER, start_new_session=True)
    script = f"import subprocess; print(subprocess.Popen({SLEEPER!r}, stdout=-3, stderr=-3).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)
    Path(task["file"]).write_text(f"{near.pid} {far.pid} {orphan}")
    if task["then"] == "hang":
        signal.pause()
    if task["then"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "answered"


def pipe_of(enter_phase):
    """The child's end of the pipe, which targets are not meant to touch."""
    (pipe,) = (c.cell_contents for c in enter_phase.__closure__)
    return pipe


def run(function, deadline=PATIENCE, method="forkserver", **task):
    return child.run(f"test_isolation:{function.__name__}", task, deadline=deadline, method=method)


@pytest.fixture(scope="module", autouse=True)
def _forkserver():
    """The fork server has imported torch before any clock starts."""
    assert run(echo).kind == "answered"


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_answer_comes_from_a_fresh_process_that_leads_its_session(method):
    first, second = (run(echo, method=method, number=n) for n in (1, 2))
    assert (first.kind, first.phase, first.message) == ("answered", "thinking", "")
    assert (first.answer["task"], second.answer["task"]) == ({"number": 1}, {"number": 2})
    assert first.answer["pid"] == first.answer["session"]
    assert len({first.answer["pid"], second.answer["pid"], os.getpid()}) == 3
    assert 0 < first.seconds < PATIENCE


@pytest.mark.parametrize("code", [0, 1, 77])
def test_leaving_without_an_answer_is_a_crash_whatever_the_code(code):
    ending = run(leave, code=code)
    assert (ending.kind, ending.answer, ending.phase) == ("crashed", None, "leaving")
    assert ending.message == f"left with exit code {code} and no answer"


def test_leaving_well_after_the_answer_is_no_crash():
    ending = run(leave_after_answer, code=0)
    assert (ending.kind, ending.answer) == ("answered", 7)


def test_leaving_badly_after_the_answer_is_a_crash():
    ending = run(leave_after_answer, code=3)
    assert (ending.kind, ending.message) == ("crashed", "left with exit code 3 after its answer")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"])
def test_a_signal_is_named(name):
    ending = run(die, signal=int(signal.Signals[name]))
    assert (ending.kind, ending.phase, ending.message) == ("crashed", "dying", f"killed by {name}")


def test_being_killed_hints_at_memory():
    ending = run(die, signal=int(signal.SIGKILL))
    assert ending.kind == "crashed"
    assert "SIGKILL" in ending.message
    assert "memory" in ending.message


def test_an_uncaught_exception_is_a_crash():
    ending = run(raise_something)
    assert (ending.kind, ending.phase) == ("crashed", "raising")


@pytest.mark.parametrize("function", [hang, ignore_everything_and_hang])
def test_a_hang_ends_at_the_deadline(function):
    started = time.monotonic()
    ending = run(function, deadline=2.0)
    assert (ending.kind, ending.phase, ending.message) == ("timed out", "hanging", "no answer within 2 s")
    assert 2.0 <= ending.seconds <= time.monotonic() - started < 2.0 + child.GRACE_SECONDS


def test_staying_after_the_answer_is_a_crash_within_the_grace(monkeypatch):
    monkeypatch.setattr(child, "GRACE_SECONDS", 1.0)
    ending = run(answer_and_stay)
    assert ending.kind == "crashed"
    assert "after its answer" in ending.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04.",
        b"{",
        b"\xff\xfe",
        b"null",
        b"7",
        b"[]",
        b'{"neither": 1}',
    ],
)
def test_garbage_in_the_pipe_is_a_crash(data, monkeypatch):
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.1)
    assert run(garbage, bytes=data.hex()).kind == "crashed"


def test_a_closed_pipe_is_a_crash(monkeypatch):
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.1)
    assert run(close_pipe).kind == "crashed"


@pytest.mark.parametrize("function", [no_json, not_a_number])
def test_an_answer_json_cannot_hold_is_a_crash(function):
    assert run(function).kind == "crashed"


def test_prints_and_prompts_go_nowhere(capfd):
    assert run(talk).answer == "done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("then", ["answer", "hang", "die"])
def test_no_descendant_survives(tmp_path, then):
    ending = run(with_grandchildren, deadline=8.0, file=str(tmp_path / "pids"), then=then)
    assert ending.kind == {"answer": "answered", "hang": "timed out", "die": "crashed"}[then]
    started = dict(zip(("near", "far", "orphan"), map(int, (tmp_path / "pids").read_text().split()), strict=True))
    left = {kind for kind, process in started.items() if planning.outlives(process)}
    for process in started.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert left == set()

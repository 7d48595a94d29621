"""How a process may end, what its result must be, and that nothing of it outlives its ending."""

import contextlib
import math
import os
import signal
import time
from queue import Empty

import pytest
from harness import targets
from harness.processes import outlives

from conformance.process import child
from conformance.process.processes import Event, Process
from conformance.records.cell import Cell

PATIENCE = 120.0
NUMBER = {"number": 7}


def run(function, task_type=dict, result_type=dict, deadline=PATIENCE, method="forkserver", **task):
    target = targets.target_of(function, task_type, result_type)
    return child.run(target, task, deadline=deadline, method=method)


@pytest.fixture(scope="module", autouse=True)
def _forkserver():
    """The fork server has imported torch before any clock starts."""
    assert run(targets.echo).kind == "answered"


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_answer_comes_from_a_fresh_process_that_leads_its_session(method):
    first, second = (run(targets.echo, method=method, number=n) for n in (1, 2))
    assert (first.kind, first.phase, first.message) == ("answered", "thinking", "")
    assert (first.result["task"], second.result["task"]) == ({"number": 1}, {"number": 2})
    assert first.result["pid"] == first.result["session"]
    assert len({first.result["pid"], second.result["pid"], os.getpid()}) == 3
    assert 0 < first.seconds < PATIENCE


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_last_lines_that_a_process_prints_before_it_dies_are_kept(method):
    ending = run(targets.complain, lines=100_000, ends="abort", method=method)
    assert (ending.kind, ending.phase, ending.message) == ("crashed", "complaining", "killed by SIGABRT")
    assert ending.said == (*(f"line {number}" for number in range(99_981, 100_000)), "the last words of native code")
    assert run(targets.complain, lines=3, ends="hang", deadline=1.0, method=method).said[0] == "line 0"
    assert run(targets.complain, lines=100_000, ends="well", method=method).kind == "answered"


def test_records_cross_in_both_directions():
    target = targets.target_of(targets.renamed, Cell, Cell)
    ending = child.run(target, Cell("merge", "eager", "fp32", "cpu"), deadline=PATIENCE)
    assert (ending.kind, ending.result) == ("answered", Cell("MERGE", "eager", "fp32", "cpu"))


def test_a_task_of_another_record_is_a_crash_that_names_the_field():
    target = targets.target_of(targets.renamed, dict, Cell)
    ending = child.run(target, {"model": "merge"}, deadline=PATIENCE)
    assert (ending.kind, ending.result) == ("crashed", None)
    assert ending.message == "RecordError: Cell has no mode"


def test_a_refusal_is_no_crash_and_has_the_words_of_the_error():
    ending = run(targets.refuse)
    assert (ending.kind, ending.result, ending.phase) == ("refused", None, "reading")
    assert ending.message == "there is no such thing"


@pytest.mark.parametrize("code", [0, 77])
def test_leaving_without_an_answer_is_a_crash_whatever_the_code(code):
    ending = run(targets.leave, code=code)
    assert (ending.kind, ending.result, ending.phase) == ("crashed", None, "leaving")
    assert ending.message == f"left with exit code {code} and no answer"


def test_leaving_badly_after_the_answer_is_a_crash():
    ending = run(targets.leave_after_answer, code=3)
    assert (ending.kind, ending.message) == ("crashed", "left with exit code 3 after its answer")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGTERM", "SIGKILL"])
def test_a_signal_is_named(name):
    ending = run(targets.die, signal=int(signal.Signals[name]))
    hint = " (perhaps by the system, because memory ran out)" if name == "SIGKILL" else ""
    assert (ending.kind, ending.phase, ending.message) == ("crashed", "dying", f"killed by {name}{hint}")


@pytest.mark.parametrize("function", [targets.hang, targets.ignore_everything_and_hang])
def test_a_hang_ends_at_the_deadline(function):
    started = time.monotonic()
    ending = run(function, deadline=2.0)
    assert (ending.kind, ending.phase, ending.message) == ("timed out", "hanging", "no answer within 2 s")
    assert 2.0 <= ending.seconds <= time.monotonic() - started < 2.0 + child.GRACE_SECONDS


def test_staying_after_the_answer_is_a_crash_within_the_grace(monkeypatch):
    monkeypatch.setattr(child, "GRACE_SECONDS", 1.0)
    ending = run(targets.answer_and_stay)
    assert ending.kind == "crashed"
    assert "after its answer" in ending.message


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b'{"result": {"number": 7}}\n'])
def test_bytes_that_are_no_frame_are_a_crash(data):
    ending = run(targets.garbage, bytes=data.hex())
    assert (ending.kind, ending.message) == ("crashed", "bytes that are no message arrived in its channel")


@pytest.mark.parametrize("message", [{}, {"phase": 1}, {"result": {"number": 7}}])
def test_a_message_that_nobody_sends_is_a_crash(message):
    ending = run(targets.garbage, message=message)
    assert (ending.kind, ending.message) == ("crashed", "sent an unknown message")


def test_a_result_that_json_cannot_hold_is_a_crash_that_names_its_type():
    ending = run(targets.no_json)
    assert ending.kind == "crashed"
    assert ending.message.endswith(": TypeError: Object of type set is not JSON serializable")


def test_a_result_of_another_type_is_a_crash_that_names_both():
    ending = run(targets.a_list)
    assert (ending.kind, ending.result) == ("crashed", None)
    assert ending.message == "sent a result that cannot be read: want dict, got list"
    assert math.isnan(run(targets.not_a_number, result_type=float).result)


def test_prints_and_prompts_go_nowhere(capfd):
    assert run(targets.talk).result == {"read": "everything"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("then", ["answer", "hang", "die"])
def test_no_descendant_survives(tmp_path, then):
    ending = run(targets.with_grandchildren, deadline=8.0, file=str(tmp_path / "pids"), then=then)
    assert ending.kind == {"answer": "answered", "hang": "timed out", "die": "crashed"}[then]
    started = dict(zip(("near", "far", "orphan"), map(int, (tmp_path / "pids").read_text().split()), strict=True))
    left = {kind for kind, process in started.items() if outlives(process)}
    for process in started.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert left == set()


def test_seconds_of_a_phase_add_up():
    ending = run(targets.count_time)
    spent = ending.result["seconds"]
    assert set(spent) == {"one", "two"}
    assert spent["one"] >= 0.1
    assert 0.05 <= spent["two"] < spent["one"]
    assert ending.phase == ending.result["phase"] == "one"


class Late:
    """The events of a process, the first of which is not there when it is asked for."""

    def __init__(self, event):
        self._event, self._asked = event, 0

    def get(self, **_waiting):
        self._asked += 1
        if self._asked == 1:
            raise Empty
        return self._event


@pytest.mark.parametrize("ended", [True, False])
def test_the_last_words_of_a_process_that_has_ended_are_heard(monkeypatch, ended):
    event = Event("message", {"result": 7, "remarks": []})
    process = Process.__new__(Process)
    process._events = Late(event)
    monkeypatch.setattr(process, "has_ended", lambda: ended)
    assert process.next_event(1.0) == (event if ended else None)

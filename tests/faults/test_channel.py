"""What a child may do to its channel: each message that is torn, forged or too long is a crash of that child alone."""

import pytest
from harness import targets
from harness.processes import printed

from conformance.process import child, processes


def run(function, deadline=60.0, method="forkserver", **task):
    return child.run(targets.target_of(function), task, deadline=deadline, method=method)


@pytest.fixture(scope="module", autouse=True)
def _fork_server():
    """The fork server has imported torch before any clock starts."""
    assert run(targets.echo).kind == "answered"


@pytest.mark.parametrize("size", [1, 32, 50])
def test_a_message_that_breaks_off_is_a_crash(size):
    ending = run(targets.tear, bytes=size, then="leave")
    assert (ending.kind, ending.message) == ("crashed", f"its last message breaks off after {size} bytes")


def test_a_message_that_stops_in_the_middle_is_a_crash_at_the_deadline():
    ending = run(targets.tear, deadline=1.5, bytes=20, then="hang")
    assert (ending.kind, ending.message) == ("crashed", "it stopped in the middle of a message")


def test_a_message_after_a_torn_one_is_a_crash():
    ending = run(targets.tear, deadline=5.0, bytes=20, then="answer")
    assert ending.kind == "crashed"


def test_a_message_above_the_limit_is_a_crash_and_a_large_one_arrives():
    ending = run(targets.go_on_for_ever)
    assert ending.kind == "crashed"
    assert ending.message == f"it sent a message of more than {processes.MAX_MESSAGE_BYTES} bytes"
    ending = run(targets.answer_at_length, length=processes.MAX_MESSAGE_BYTES)
    assert ending.kind == "crashed"
    assert f"at most {processes.MAX_MESSAGE_BYTES}" in ending.message
    assert len(run(targets.answer_at_length, length=2**22).result["text"]) == 2**22


def test_a_wrong_checksum_is_a_crash():
    assert run(targets.damage).message == "a message in its channel is damaged"


def test_a_result_that_is_written_to_every_descriptor_is_no_result():
    ending = run(targets.write_everywhere)
    assert (ending.kind, ending.result) == ("crashed", None)
    assert ending.message == "bytes that are no message arrived in its channel"


def test_a_forked_copy_does_not_speak_for_its_original():
    assert run(targets.fork_and_go_on).result == {"copy": False}


def test_a_program_that_a_child_starts_has_no_channel():
    descriptors = run(targets.descriptors_of_a_grandchild).result["descriptors"]
    assert set(descriptors) <= {0, 1, 2}


def test_a_thread_that_outlives_the_answer_is_a_crash(monkeypatch):
    monkeypatch.setattr(child, "GRACE_SECONDS", 1.0)
    assert "after its answer" in run(targets.leave_a_thread).message


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_idle_pool_of_threads_is_no_crash(method):
    assert run(targets.leave_an_idle_pool, method=method).result == {"sum": 3}


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit", "MemoryError"])
def test_an_exception_of_any_kind_is_named(name):
    ending = run(targets.raise_by_name, type=name, text="once\nmore \x1b[31m")
    assert (ending.kind, ending.message) == ("crashed", f"{name}: once more \\x1b[31m")


def test_a_hundred_children_leave_no_descriptor_and_no_thread():
    script = """
import json, os, threading
from harness import targets
from conformance.process import child
def used():
    return [len(os.listdir("/proc/self/fd")), threading.active_count()]
child.run(targets.target_of(targets.echo), {}, deadline=60.0)
before = used()
for _ in range(100):
    child.run(targets.target_of(targets.echo), {}, deadline=60.0)
print(json.dumps([before, used()]))
"""
    before, after = printed(script)
    assert after == before

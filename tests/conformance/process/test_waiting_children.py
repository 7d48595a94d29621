"""A child that waits for the machine: its waiting does not count, and its deadline holds afterwards."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import targets

from conformance.process import child, machine_lock
from conformance.process.child_side import WAITING, ChildProcess

DEADLINE = 6.0  # a spawned child, which imports no torch, starts in less


@pytest.fixture(autouse=True)
def _own_lock(tmp_path, monkeypatch):
    """A machine lock of this test alone, for this process and the children that it spawns."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(machine_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def work(kind, seconds):
    task = {"kind": kind, "seconds": seconds}
    return child.run(targets.target_of(targets.work_on_the_machine), task, deadline=DEADLINE, method="spawn")


def test_a_child_waits_for_the_machine_beyond_its_deadline_and_then_works():
    with ThreadPoolExecutor() as pool:
        with machine_lock.alone():
            jobs = [pool.submit(work, kind, 0.1) for kind in ("shared", "alone")]
            time.sleep(DEADLINE + 1.0)
            assert not any(job.done() for job in jobs), [job.result() for job in jobs if job.done()]
            released = time.monotonic()
        endings = [job.result() for job in jobs]
    for ending in endings:
        assert ending.kind == "answered", ending
        assert ending.result["began"] >= released
        assert ending.result["phases"] == ["start", "preparing"]
        assert ending.phase == "preparing"
        assert ending.seconds > DEADLINE


def test_the_time_after_waiting_counts_again():
    ending = work("alone", 3600.0)
    assert (ending.kind, ending.phase) == ("timed out", "preparing")


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_a_process_reports_that_it_waits_and_then_its_phase_again(kind):
    told = []
    process = ChildProcess(told.append)
    process.enter("measure")
    with getattr(process, kind)():
        assert process.current == "measure"
    assert told == ["measure", WAITING, "measure"]


def test_work_in_parts_reports_that_it_gives_way_and_only_if_somebody_waits():
    told = []
    process = ChildProcess(told.append)
    process.give_way()  # it holds nothing
    process.enter("reference")
    with process.shared():
        process.give_way()  # nobody waits
        told.clear()
        measurement = threading.Thread(target=_measure)
        measurement.start()
        until = time.monotonic() + 30
        while WAITING not in told and time.monotonic() < until:
            process.give_way()
            time.sleep(0.01)
        measurement.join()
    assert told == [WAITING, "reference"]


def _measure():
    with machine_lock.alone():
        pass

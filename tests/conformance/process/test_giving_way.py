"""What takes long, and works in parts, gives way to a measurement that waits for the machine."""

import contextlib
import multiprocessing
import time

import pytest

from conformance.process import machine_lock

FORK = multiprocessing.get_context("fork")
PATIENCE = 30
AT_THE_TURNSTILE = 0.3  # seconds until a process waits there


@pytest.fixture(autouse=True)
def _own_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(machine_lock, "POLL_SECONDS", 0.02)


@contextlib.contextmanager
def running(target, *arguments):
    """A process that calls a function, and is killed if it has not ended."""
    process = FORK.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def work_in_parts(leave, inside):
    """Count itself in for as long as a part takes."""
    with machine_lock.Slot() as slot:
        while not leave.is_set():
            if slot.is_in_the_way():
                slot.give_way()
            inside.value = 1
            time.sleep(0.02)
            inside.value = 0


def measure(inside, seen):
    with machine_lock.alone():
        time.sleep(0.1)
        seen.value = inside.value


def test_work_in_parts_gives_way_to_each_measurement_and_goes_on():
    leave, inside, seen = FORK.Event(), FORK.Value("i", 0), FORK.Value("i", -1)
    with running(work_in_parts, leave, inside) as worker:
        for _ in range(2):
            with running(measure, inside, seen) as measurement:
                measurement.join(PATIENCE)
                assert (measurement.exitcode, seen.value) == (0, 0)
            seen.value = -1
        leave.set()
        worker.join(PATIENCE)
        assert worker.exitcode == 0


def tell(told, slot):
    told.value = slot.is_in_the_way()


def test_a_fork_does_not_give_away_the_slot_of_another_process():
    told = FORK.Value("i", -1)
    with machine_lock.Slot() as slot, running(measure, FORK.Value("i", 0), FORK.Value("i", 0)):
        time.sleep(AT_THE_TURNSTILE)
        assert slot.is_in_the_way()
        with running(tell, told, slot) as fork:
            fork.join(PATIENCE)
    assert told.value == 0


def test_nobody_is_in_the_way_of_an_idle_machine():
    with machine_lock.Slot() as slot:
        assert not slot.is_in_the_way()

"""The lock: cells share the machine, a measurement has it alone, and nobody starves."""

import multiprocessing
import os
import time

import pytest

from conformance.run import machine_lock

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _own_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def started(target, *arguments):
    process = FORK.Process(target=target, args=arguments)
    process.start()
    return process


def hold(kind, inside, leave):
    with getattr(machine, kind)():
        inside.set()
        leave.wait(30)


def test_cells_share_the_machine():
    inside, leave = FORK.Event(), FORK.Event()
    other = started(hold, "shared", inside, leave)
    assert inside.wait(10)
    with machine_lock.shared():
        leave.set()
    other.join(10)
    assert other.exitcode == 0


@pytest.mark.parametrize(("first", "second"), [("shared", "alone"), ("alone", "shared"), ("alone", "alone")])
def test_a_measurement_is_alone(first, second):
    inside, leave, later = FORK.Event(), FORK.Event(), FORK.Event()
    one = started(hold, first, inside, leave)
    assert inside.wait(10)
    two = started(hold, second, later, leave)
    assert not later.wait(0.5)
    leave.set()
    assert later.wait(10)
    for process in (one, two):
        process.join(10)


def test_whoever_comes_after_a_waiting_measurement_waits_too():
    cell_in, measuring, late_in = FORK.Event(), FORK.Event(), FORK.Event()
    cell_leaves, measured, late_leaves = FORK.Event(), FORK.Event(), FORK.Event()
    late_leaves.set()
    cell = started(hold, "shared", cell_in, cell_leaves)
    assert cell_in.wait(10)
    measurement = started(hold, "alone", measuring, measured)
    time.sleep(0.3)  # it waits at the turnstile now
    late = started(hold, "shared", late_in, late_leaves)
    assert not late_in.wait(0.5)
    cell_leaves.set()
    assert measuring.wait(10)
    assert not late_in.is_set()
    measured.set()
    assert late_in.wait(10)
    for process in (cell, measurement, late):
        process.join(10)


def test_a_process_that_dies_leaves_the_machine():
    inside, never = FORK.Event(), FORK.Event()
    other = started(hold, "alone", inside, never)
    assert inside.wait(10)
    os.kill(other.pid, 9)
    other.join(10)
    with machine_lock.alone():
        pass

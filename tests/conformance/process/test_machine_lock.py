"""The lock: cells share the machine, a measurement has it alone, and nobody starves."""

import contextlib
import multiprocessing
import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest

import conformance
from conformance.process import machine_lock

FORK = multiprocessing.get_context("fork")
A_WHILE = 0.5  # long enough for a process that need not wait
PATIENCE = 30


@pytest.fixture(autouse=True)
def _own_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(machine_lock, "POLL_SECONDS", 0.02)


@pytest.fixture
def start():
    """A function that calls another in a process of its own, which does not outlive the test."""
    processes = []

    def started(target, *arguments):
        process = FORK.Process(target=target, args=arguments)
        process.start()
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.join()


@contextlib.contextmanager
def shared():
    """Hold the lock as a cell does; yields the remark."""
    with machine_lock.Slot() as slot:
        yield slot.remark


KINDS = {"shared": shared, "alone": machine_lock.alone}


def hold(kind, inside, leave):
    with KINDS[kind]():
        inside.set()
        leave.wait(PATIENCE)


def test_cells_share_the_machine(start):
    entered, leave = [FORK.Event() for _ in range(4)], FORK.Event()
    others = [start(hold, "shared", inside, leave) for inside in entered]
    assert all(inside.wait(PATIENCE) for inside in entered)
    with shared():
        leave.set()
    for other in others:
        other.join(PATIENCE)
        assert other.exitcode == 0


def test_threads_of_a_process_share_the_machine_too():
    entered, leave = [threading.Event() for _ in range(3)], threading.Event()
    threads = [threading.Thread(target=hold, args=("shared", inside, leave)) for inside in entered]
    for thread in threads:
        thread.start()
    try:
        assert all(inside.wait(PATIENCE) for inside in entered)
    finally:
        leave.set()
        for thread in threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize(("first", "second"), [("shared", "alone"), ("alone", "shared"), ("alone", "alone")])
def test_a_measurement_is_alone(start, first, second):
    inside, leave, later = FORK.Event(), FORK.Event(), FORK.Event()
    start(hold, first, inside, leave)
    assert inside.wait(PATIENCE)
    start(hold, second, later, leave)
    assert not later.wait(A_WHILE)
    leave.set()
    assert later.wait(PATIENCE)


def test_a_measurement_waits_for_the_last_of_many_cells(start):
    cells = [(FORK.Event(), FORK.Event()) for _ in range(3)]
    for inside, leave in cells:
        start(hold, "shared", inside, leave)
        assert inside.wait(PATIENCE)
    measuring, measured = FORK.Event(), FORK.Event()
    start(hold, "alone", measuring, measured)
    for _, leave in cells:
        assert not measuring.wait(A_WHILE)
        leave.set()
    assert measuring.wait(PATIENCE)


def test_whoever_comes_after_a_waiting_measurement_waits_too(start):
    cell_in, measuring, late_in = FORK.Event(), FORK.Event(), FORK.Event()
    cell_leaves, measured, late_leaves = FORK.Event(), FORK.Event(), FORK.Event()
    late_leaves.set()
    start(hold, "shared", cell_in, cell_leaves)
    assert cell_in.wait(PATIENCE)
    start(hold, "alone", measuring, measured)
    time.sleep(0.3)  # it waits at the turnstile now
    start(hold, "shared", late_in, late_leaves)
    assert not late_in.wait(A_WHILE)
    cell_leaves.set()
    assert measuring.wait(PATIENCE)
    assert not late_in.wait(A_WHILE)
    measured.set()
    assert late_in.wait(PATIENCE)


def keep_coming(stop):
    while not stop.is_set():
        with shared():
            time.sleep(0.05)


def test_an_endless_stream_of_cells_does_not_starve_a_measurement(start):
    stop, measuring, measured = FORK.Event(), FORK.Event(), FORK.Event()
    cells = [start(keep_coming, stop) for _ in range(4)]
    start(hold, "alone", measuring, measured)
    assert measuring.wait(PATIENCE)
    measured.set()
    stop.set()
    for cell in cells:
        cell.join(PATIENCE)
        assert cell.exitcode == 0


@pytest.mark.parametrize("held", ["shared", "alone"])
def test_a_killed_process_releases_the_machine(start, held):
    inside, never = FORK.Event(), FORK.Event()
    other = start(hold, held, inside, never)
    assert inside.wait(PATIENCE)
    os.kill(other.pid, signal.SIGKILL)
    other.join(PATIENCE)
    with machine_lock.alone():
        pass


def test_a_killed_measurement_that_was_waiting_lets_cells_in_again(start):
    cell_in, cell_leaves, measuring, never, late_in = (FORK.Event() for _ in range(5))
    start(hold, "shared", cell_in, cell_leaves)
    assert cell_in.wait(PATIENCE)
    waiting = start(hold, "alone", measuring, never)
    time.sleep(0.3)
    start(hold, "shared", late_in, never)
    assert not late_in.wait(A_WHILE)
    os.kill(waiting.pid, signal.SIGKILL)
    assert late_in.wait(PATIENCE)


def test_an_exception_releases_the_machine():
    for kind in (shared, machine_lock.alone):
        with contextlib.suppress(LookupError), kind():
            raise LookupError
    with machine_lock.alone():
        pass


def test_more_cells_than_slots_wait_for_each_other(start, monkeypatch):
    monkeypatch.setattr(machine_lock, "SLOTS", 2)
    cells = [(FORK.Event(), FORK.Event()) for _ in range(3)]
    for inside, leave in cells:
        start(hold, "shared", inside, leave)
    time.sleep(A_WHILE)
    entered = [(inside, leave) for inside, leave in cells if inside.is_set()]
    assert len(entered) == 2
    entered[0][1].set()
    assert all(inside.wait(PATIENCE / 3) for inside, _ in cells)  # the others hold theirs for longer


@pytest.mark.parametrize(("first", "second"), [("shared", "alone"), ("alone", "shared"), ("alone", "alone")])
def test_nobody_waits_for_ever(start, monkeypatch, first, second):
    inside, never = FORK.Event(), FORK.Event()
    start(hold, first, inside, never)
    assert inside.wait(PATIENCE)
    monkeypatch.setattr(machine_lock, "PATIENCE_SECONDS", 0.2)
    with KINDS[second]() as remark:
        assert remark == "other work did not leave the machine within 0.2 s, so this did not wait for it any longer"


def test_a_cell_waits_for_a_free_slot_no_longer_than_for_the_rest(start, monkeypatch):
    monkeypatch.setattr(machine_lock, "SLOTS", 1)
    inside, never = FORK.Event(), FORK.Event()
    start(hold, "shared", inside, never)
    assert inside.wait(PATIENCE)
    monkeypatch.setattr(machine_lock, "PATIENCE_SECONDS", 0.2)
    with shared() as remark:
        assert remark.startswith("other work did not leave the machine")


def come_and_go(number, inside, faults):
    """Hold the lock in turn with others and alone; count who was there at a wrong time."""
    for turn in range(6):
        kind, weight = ("alone", 100) if (turn + number) % 3 == 0 else ("shared", 1)
        with KINDS[kind]():
            with inside.get_lock():
                inside.value += weight
            time.sleep(0.01)
            with inside.get_lock():
                faults.value += inside.value >= 100 and inside.value != weight
                inside.value -= weight


def test_several_processes_never_meet_a_measurement(start):
    inside, faults = FORK.Value("i", 0), FORK.Value("i", 0)
    processes = [start(come_and_go, number, inside, faults) for number in range(4)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert (inside.value, faults.value) == (0, 0)


def test_another_user_may_lock_too_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with shared():
            pass
        with machine_lock.alone():
            pass
    finally:
        os.umask(before)
    folder = tmp_path / machine_lock.FOLDER
    locks = list(folder.iterdir())
    assert len(locks) == machine_lock.SLOTS + 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in locks} == {0o666}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777


def test_nothing_locks_by_a_call_of_one_system():
    package = Path(conformance.__file__).parent
    users = [path.name for path in package.rglob("*.py") if "fcntl" in path.read_text(encoding="utf-8")]
    assert users == ["lifeline.py"]  # which locks nothing, and does without where it is absent


def test_cores_are_idle_that_neither_a_cell_nor_another_fork_uses(monkeypatch, start):
    monkeypatch.setenv("CONFORMANCE_CORES", "4")
    inside, leave = FORK.Event(), FORK.Event()
    other = start(hold, "shared", inside, leave)
    assert inside.wait(PATIENCE)
    with shared(), machine_lock.idle(9) as free, machine_lock.idle(9) as none:
        assert (free, none) == (2, 0)
    with shared(), machine_lock.idle(1) as one, machine_lock.idle(9) as another:
        assert (one, another) == (1, 1)
    leave.set()
    other.join(PATIENCE)
    with shared(), machine_lock.idle(9) as free, machine_lock.idle(-1) as none:
        assert (free, none) == (3, 0)


def test_a_person_may_say_how_many_cores_there_are(monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CORES", "1")
    with shared(), machine_lock.idle(9) as free:
        assert free == 0
    monkeypatch.setenv("CONFORMANCE_CORES", "")
    with machine_lock.idle(99) as free:
        assert free == os.cpu_count()


def test_nobody_takes_an_idle_core_from_a_measurement(monkeypatch, start):
    monkeypatch.setenv("CONFORMANCE_CORES", "4")
    inside, leave = FORK.Event(), FORK.Event()
    start(hold, "shared", inside, leave)
    assert inside.wait(PATIENCE)
    start(hold, "alone", FORK.Event(), leave)
    time.sleep(0.3)  # it waits at the turnstile now
    with machine_lock.idle(9) as free:
        assert free == 0
    leave.set()


def test_a_measurement_waits_for_the_forks(monkeypatch, start):
    monkeypatch.setenv("CONFORMANCE_CORES", "4")
    measuring, measured = FORK.Event(), FORK.Event()
    with machine_lock.idle(2):
        start(hold, "alone", measuring, measured)
        assert not measuring.wait(A_WHILE)
    assert measuring.wait(PATIENCE)
    measured.set()


def test_without_a_folder_for_locks_no_core_is_idle(monkeypatch):
    monkeypatch.setattr(machine_lock, "_in_the_first_folder", lambda _: (contextlib.ExitStack(), "unlocked"))
    with machine_lock.idle(9) as free:
        assert free == 0

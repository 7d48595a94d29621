"""The lock: cells share the machine, a measurement has it alone, nobody starves, and what takes long gives way."""

import contextlib
import multiprocessing
import os
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import targets

from conformance.process import child, machine_lock
from conformance.process.child_side import WAITING, ChildProcess

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


@pytest.mark.parametrize(("first", "second"), [("shared", "alone"), ("alone", "shared"), ("alone", "alone")])
def test_a_measurement_is_alone(start, first, second):
    inside, leave, later = FORK.Event(), FORK.Event(), FORK.Event()
    start(hold, first, inside, leave)
    assert inside.wait(PATIENCE)
    start(hold, second, later, leave)
    assert not later.wait(A_WHILE)
    leave.set()
    assert later.wait(PATIENCE)


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


@pytest.mark.parametrize(("first", "second"), [("shared", "alone"), ("alone", "shared")])
def test_nobody_waits_for_ever(start, monkeypatch, first, second):
    inside, never = FORK.Event(), FORK.Event()
    start(hold, first, inside, never)
    assert inside.wait(PATIENCE)
    monkeypatch.setattr(machine_lock, "PATIENCE_SECONDS", 0.2)
    with KINDS[second]() as remark:
        assert remark == "other work did not leave the machine within 0.2 s, so this did not wait for it any longer"


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


# What takes long, and works in parts, gives way to a measurement that waits


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


def test_work_in_parts_gives_way_to_each_measurement_and_goes_on(start):
    leave, inside = FORK.Event(), FORK.Value("i", 0)
    worker = start(work_in_parts, leave, inside)
    for _ in range(2):
        seen = FORK.Value("i", -1)
        measurement = start(measure, inside, seen)
        measurement.join(PATIENCE)
        assert (measurement.exitcode, seen.value) == (0, 0)
    leave.set()
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def tell(told, slot):
    told.value = slot.is_in_the_way()


def test_a_slot_is_in_the_way_if_somebody_waits_and_never_in_a_fork(start):
    told = FORK.Value("i", -1)
    with machine_lock.Slot() as slot:
        assert not slot.is_in_the_way()
        start(measure, FORK.Value("i", 0), FORK.Value("i", 0))
        time.sleep(0.3)  # it waits at the turnstile now
        assert slot.is_in_the_way()
        start(tell, told, slot).join(PATIENCE)
    assert told.value == 0


def test_a_child_reports_that_it_gives_way_and_only_if_somebody_waits(start):
    told = []
    process = ChildProcess(told.append)
    process.give_way()  # it holds nothing
    process.enter("reference")
    with process.shared():
        process.give_way()  # nobody waits
        assert told == ["reference", WAITING, "reference"]
        start(measure, FORK.Value("i", 0), FORK.Value("i", 0))
        until = time.monotonic() + PATIENCE
        while told.count(WAITING) < 2 and time.monotonic() < until:
            process.give_way()
            time.sleep(0.01)
    assert told == ["reference", WAITING, "reference", WAITING, "reference"]


DEADLINE = 6.0  # a spawned child, which imports no torch, starts in less


def work(kind, seconds):
    task = {"kind": kind, "seconds": seconds}
    return child.run(targets.target_of(targets.work_on_the_machine), task, deadline=DEADLINE, method="spawn")


def test_a_child_waits_for_the_machine_beyond_its_deadline_which_then_holds_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ThreadPoolExecutor() as pool:
        with machine_lock.alone():
            jobs = [pool.submit(work, *job) for job in (("shared", 0.1), ("alone", 0.1), ("shared", 3600.0))]
            time.sleep(DEADLINE + 1.0)
            assert not any(job.done() for job in jobs), [job.result() for job in jobs if job.done()]
            released = time.monotonic()
        *answered, late = [job.result() for job in jobs]
    for ending in answered:
        assert ending.kind == "answered", ending
        assert ending.result["began"] >= released
        assert ending.result["phases"] == ["start", "preparing"]
        assert ending.seconds > DEADLINE
    assert (late.kind, late.phase) == ("timed out", "preparing")

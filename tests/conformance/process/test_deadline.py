"""The time that a process may take: a core that others use does not count, a process that does nothing does."""

import os
import subprocess
import sys

import pytest
from harness import targets

from conformance.process import child, process_table
from conformance.process.child import Deadline


@pytest.fixture
def waited(monkeypatch):
    """What the threads of a process have waited for, as the system tells it."""
    told = {}
    monkeypatch.setattr(process_table, "waiting_seconds", lambda _: dict(told))
    return told


def test_steps_count_and_a_sleeping_machine_does_not(waited):
    deadline = Deadline(10.0, 1)
    deadline.passes(0.25)
    deadline.passes(3600.0)
    assert deadline.left == 8.75
    assert str(deadline) == "10 s"


def test_what_the_longest_waiting_thread_waited_does_not_count(waited):
    deadline = Deadline(2.0, 1)
    waited.update(main=5.0, other=1.0)
    deadline.passes(1.0)  # the first look
    waited.update(main=5.25, other=1.75, new=9.0)
    deadline.passes(1.0)
    assert (deadline.left, deadline.taken) == (0.75, 0.75)
    waited.update(main=99.0)
    deadline.passes(0.5)
    assert (deadline.left, deadline.taken) == (0.75, 1.25)


def test_others_may_keep_a_process_from_its_core_for_three_times_its_time(waited):
    deadline, steps = Deadline(20.0, 1), 0
    while deadline.left > 0:
        deadline.passes(1.0)
        steps += 1
        waited["main"] = float(steps)
    assert steps == 20 + 60
    assert str(deadline) == "20 s, beside 60 s in which others used its core"


def test_nobody_looks_at_the_first_half(monkeypatch):
    monkeypatch.setattr(process_table, "waiting_seconds", None)
    deadline = Deadline(10.0, 1)
    for _ in range(4):
        deadline.passes(1.0)
    assert deadline.left == 6.0


@pytest.mark.skipif(
    not process_table.waiting_seconds(os.getpid()), reason="this system does not tell how long a thread waited"
)
def test_a_process_that_shares_its_core_has_its_time_all_the_same():
    core = min(os.sched_getaffinity(0))
    spinning = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spinning], start_new_session=True) for _ in range(4)]
    try:
        target = targets.target_of(targets.compute)
        ending = child.run(target, {"core": core, "seconds": 0.7}, deadline=2.0)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert ending.kind == "answered"
    assert ending.seconds > 2.0

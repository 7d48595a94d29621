"""The clock of CUDA, on events made by hand; the added work of the slower control; calls that must not compile."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from conformance.figures.meter import HostClock, TimedCall
from conformance.measure import side_by_side
from conformance.measure.side_by_side import EXTRA_WORK, DeviceClock, clock_for, no_recompilation, slow_down


@pytest.fixture
def steps(monkeypatch):
    """What the clock asked of the device, in order; the device has a cache of 512 bytes and needs 2.5 ms a call."""
    steps = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.number = sum(step.startswith("made") for step in steps)
            steps.append(f"made {self.number}")

        def record(self):
            steps.append(f"record {self.number}")

        def elapsed_time(self, end):
            assert (self.number, end.number) == (0, 1)
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: steps.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=512))
    return steps


def test_each_device_has_its_clock(monkeypatch):
    monkeypatch.setattr(side_by_side, "DeviceClock", lambda device: f"clock of {device}")
    assert isinstance(clock_for("cpu"), HostClock)
    assert clock_for("cuda") == "clock of cuda"


def test_a_call_is_timed_between_two_events_after_the_device_is_idle(steps):
    clock = DeviceClock("cpu")
    assert steps == ["made 0", "made 1", "record 1"]
    steps.clear()
    sample, result = clock.sample(lambda: steps.append("call") or "result")
    assert steps == ["synchronize", "record 0", "call", "record 1", "synchronize"]
    assert result == "result"
    assert sample.ns == 2.5e6
    assert 0 < sample.host_ns < 2.5e6


def test_the_cache_of_the_device_is_overwritten_before_each_call(steps):
    clock = DeviceClock("cpu")
    assert clock._flush.nbytes == 2 * 512
    clock._flush.fill_(1)
    seen = []
    clock.sample(lambda: seen.append(int(clock._flush.sum())))
    assert seen == [0]


def test_a_tenth_of_its_time_is_added_behind_a_call(monkeypatch):
    assert EXTRA_WORK == 0.1
    monkeypatch.setattr(side_by_side, "_quickest", lambda *_: 2e5)  # nanoseconds of 10 000 turns
    timed = TimedCall("a", lambda: "result", quickest=100e6)
    slow_down(timed, "cpu")
    assert timed.call() == "result"
    assert (500_000,) in [getattr(cell.cell_contents, "args", None) for cell in timed.call.__closure__]  # 10 ms


def test_the_added_work_takes_time():
    timed = TimedCall("a", lambda: "result", quickest=100e6)
    slow_down(timed, "cpu")
    seconds = []
    for _ in range(5):
        started = time.thread_time()  # without the time that the thread waits for a processor
        timed.call()
        seconds.append(time.thread_time() - started)
    assert min(seconds) > 0.003  # of 10 ms on a machine that calibration saw slowed down


def test_a_timed_call_that_would_compile_again_raises_an_error():
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.zeros(2))
    can_forbid = hasattr(torch.compiler, "set_stance")
    with no_recompilation():
        compiled(torch.zeros(2))
        with pytest.raises(RuntimeError) if can_forbid else nullcontext():
            compiled(torch.zeros(3))
    compiled(torch.zeros(4))

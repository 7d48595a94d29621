"""The clocks of devices; that of CUDA on events made by hand, which tell when each step happened."""

from types import SimpleNamespace

import pytest
import torch

from conformance.figures.meter import HostClock
from conformance.measure import clocks
from conformance.measure.side_by_side import DeviceClock, clock_for


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


def test_the_cpu_has_the_clock_of_the_host():
    assert isinstance(clock_for("cpu"), HostClock)


def test_cuda_has_the_clock_of_its_device(monkeypatch):
    monkeypatch.setattr(clocks, "DeviceClock", lambda device: f"clock of {device}")
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

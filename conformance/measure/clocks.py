"""Times single calls on the clock of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.figures.meter import Clock, HostClock
from conformance.figures.rounds import Sample


class DeviceClock:
    """Measures the time between two CUDA events, and the wall time until the device has finished.

    The L2 cache is flushed before each call.
    """

    def __init__(self, device: str) -> None:
        self._host = HostClock()
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flush = torch.empty(2 * size, dtype=torch.int8, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._end.record()  # the first record creates the event, which must not happen in the measured time

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""
        self._flush.zero_()

        def until_done() -> Any:
            self._start.record()
            result = call()
            self._end.record()
            torch.cuda.synchronize()  # the whole device, so that no stream still works in the next sample
            return result

        torch.cuda.synchronize()
        seen, result = self._host.sample(until_done)
        return Sample(self._start.elapsed_time(self._end) * 1e6, seen.host_ns, seen.delay_ns), result


def clock_for(device: str) -> Clock:
    """The clock of a device type."""
    return HostClock() if device == "cpu" else DeviceClock(device)

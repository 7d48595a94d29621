"""Counts down the time that a process may take, without the time that others take from it.

Neither a machine that sleeps nor a core that another process uses is the fault of a model.
"""

from __future__ import annotations

from conformance.process import process_table

STEP_SECONDS = 1.0  # the most that a step counts, however long this process slept in it
UNWATCHED = 0.5  # share of the time in which nobody looks: few processes need more, and a look takes milliseconds
MOST = 3.0  # times the deadline: for so long may others keep a process from its core
WORTH_SAYING = 10.0  # seconds


class Deadline:
    """The time that a process may take.

    Args:
        seconds: how long it may run.
        pid: its process id.

    Attributes:
        left: the seconds that it has left.
        taken: the seconds that it waited for a core, as far as they did not count.
    """

    def __init__(self, seconds: float, pid: int) -> None:
        self.left, self.taken = seconds, 0.0
        self._seconds, self._pid = seconds, pid
        self._waited: dict[str, float] = {}

    def passes(self, seconds: float) -> None:
        """Count a step of so many seconds, except those in which a thread of the process waited for a core."""
        step = min(seconds, STEP_SECONDS)
        self.left -= step
        if self.left > UNWATCHED * self._seconds:
            return
        before, self._waited = self._waited, process_table.waited(self._pid)
        longest = max((now - before[thread] for thread, now in self._waited.items() if thread in before), default=0.0)
        given = min(longest, step, MOST * self._seconds - self.taken)
        self.left += given
        self.taken += given

    def __str__(self) -> str:
        kept = f", beside {self.taken:.0f} s in which others used its core" if self.taken >= WORTH_SAYING else ""
        return f"{self._seconds:g} s{kept}"

"""Says about how long a run will take, and how far it is.

The estimate is a table of seconds: those of the last runs in the same folder, or of the zoo where it was measured once.
What is left is scaled by the pace of this run, which counts more the longer it runs. So it never runs out, whatever
else the machine does.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.commands import interrupts, output
from conformance.errors import UsageError, counted
from conformance.figures.speed import PROCESSES
from conformance.process import machine_lock
from conformance.records.plan import Plan
from conformance.show.text import printable
from conformance.store import durations, run_files

EARLIER_RUNS = 3  # that are read
SPEED_SECONDS = 3.0  # in which a process prepares and measures the speeds of one model in one precision
TRUST_SECONDS = 30.0  # of this run, after which its pace counts as much as the table
MINUTE, HOUR = 60.0, 3600.0
ERASE = "\r\x1b[K"
EVERY_SECONDS = 60.0  # between two lines where there is no terminal
BEAT_SECONDS = 1.0
BEATS = 5  # at which somebody else holds the machine, before that is said
WAITING = "other work holds the machine, such as a measurement of another run; cells wait for it"


def expected_seconds(contents: run_files.Contents, folder: Path) -> dict[str, float]:
    """About how many seconds each cell to judge in the run of a folder will take, by id."""
    missing = set(contents.missing)
    cells = [planned for planned in contents.plan.cells if planned.id in missing]
    known = {**durations.of_the_zoo(), **_of_earlier_runs(folder), **durations.of_run(contents)}
    return durations.estimate(contents.plan, known)(cells)


def opening(plan: Plan, expected: Mapping[str, float], at_once: int) -> str:
    """How long a run will take if so many cells are judged at a time, with its speeds, in one sentence."""
    cells = [one.cell for one in plan.cells if plan.measure and not one.skip]
    timed = {(cell.model, cell.precision) for cell in cells if plan.is_timed(cell)}
    seconds = sum(expected.values()) / at_once + SPEED_SECONDS * PROCESSES * len(timed)
    return f"this takes about {say_seconds(seconds)}"


def _of_earlier_runs(folder: Path) -> dict[str, durations.ModelSeconds]:
    """The seconds of models in the latest runs beside a run."""
    found: dict[str, durations.ModelSeconds] = {}
    earlier = sorted(path for path in folder.parent.glob("*") if path.name < folder.name and path.is_dir())
    for path in earlier[-EARLIER_RUNS:]:
        with contextlib.suppress(UsageError, OSError):
            found |= durations.of_run(run_files.read(path))
    return found


@dataclass
class Progress:
    """Counts what is done, and estimates what is left.

    Attributes:
        expected: about how many seconds each item will take, by name.
        what: the name of one item, such as "cell".
        at_once: number of items that are done at a time.
        red: number of items that are red.
        began: when the work began, as `time.monotonic` tells it.

    >>> work = Progress({"a": 60.0, "b": 60.0, "c": 60.0}, "cell", at_once=2, began=time.monotonic() - 90.0)
    >>> work.finish("a", red=True)
    >>> work.line()
    '1 of 3 cells done, 1 red, about 2 min left'
    """

    expected: Mapping[str, float]
    what: str
    at_once: int = 1
    red: int = 0
    began: float = field(default_factory=time.monotonic)
    _done: set[str] = field(default_factory=set)

    def keep(self, names: Collection[str]) -> None:
        """Count these items alone."""
        self.expected = {name: seconds for name, seconds in self.expected.items() if name in names}

    def finish(self, name: str, *, red: bool = False) -> None:
        """Count an item that is finished."""
        if name in self.expected and name not in self._done:
            self._done.add(name)
            self.red += red

    def line(self) -> str:
        """Where the work stands, on one line."""
        expected, done = self.expected, self._done.copy()  # another thread may ask for it
        parts = [f"{len(done)} of {counted(len(expected), self.what)} done"]
        parts += [f"{self.red} red"] if self.red else []
        if len(done) < len(expected):
            passed = sum(expected[name] for name in done) / self.at_once
            pace = (time.monotonic() - self.began + TRUST_SECONDS) / (passed + TRUST_SECONDS)
            parts.append(f"about {say_seconds((sum(expected.values()) / self.at_once - passed) * pace)} left")
        return ", ".join(parts)


def say_seconds(seconds: float) -> str:
    """A time as people say it.

    >>> [say_seconds(seconds) for seconds in (0.4, 41.0, 200.0, 9000.0)]
    ['1 s', '41 s', '3 min', '2.5 h']
    """
    if seconds < MINUTE:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / MINUTE)} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


class Ticker:
    """Prints lines of a run, and where it stands: on a terminal in a line below them, elsewhere now and then.

    Args:
        progress: the work.
        every_line: print every line that is offered, not only those that must be seen.
        aside: print on the error stream, and nothing if that is no terminal.
    """

    def __init__(self, progress: Progress, *, every_line: bool = False, aside: bool = False) -> None:
        self.progress = progress
        self._every_line, self._aside = every_line, aside
        self._stream = sys.stderr if aside else sys.stdout
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._told = time.monotonic()
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """A context in which it shows where the work stands also while nothing is finished."""
        ended = threading.Event()

        def beat() -> None:
            taken = 0
            while not ended.wait(BEAT_SECONDS):
                taken = taken + 1 if machine_lock.is_taken() else 0
                if taken == BEATS and self._aside:
                    output.say(WAITING)
                if not interrupts.received_signal():
                    self.show(f"· {WAITING}" if taken == BEATS and not self._aside else "", urgent=True)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.clear()

    def show(self, line: str, *, urgent: bool) -> None:
        """Print a line if it is urgent or every line is wanted, and where the work stands."""
        with self._lock:
            if line and (urgent or self._every_line):
                self.clear()
                output.tell(line)
            if self._terminal:
                room = (output.columns(self._stream) or 0) - 1  # a longer line would leave a row behind at each change
                self._stream.write(f"{ERASE}{printable(self.progress.line())[:room]}")
                self._stream.flush()
            elif not (self._every_line or self._aside) and time.monotonic() - self._told >= EVERY_SECONDS:
                self._told = time.monotonic()
                output.tell(self.progress.line())

    def clear(self) -> None:
        """Remove the line that changes."""
        if self._terminal:
            self._stream.write(ERASE)
            self._stream.flush()

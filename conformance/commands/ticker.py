"""Shows how far a run is: on a terminal in a line that changes, elsewhere in a line now and then."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from conformance.commands import interrupts
from conformance.commands.output import tell
from conformance.show.progress import Progress
from conformance.show.text import printable

ERASE = "\r\x1b[K"
EVERY_SECONDS = 60.0  # between two lines where there is no terminal
BEAT_SECONDS = 1.0


class Ticker:
    """Prints lines of a run, and below them where it stands.

    Args:
        progress: the work.
        every_line: print every line that is offered, not only those that must be seen.
    """

    def __init__(self, progress: Progress, *, every_line: bool = False) -> None:
        self.progress = progress
        self._every_line = every_line
        self._terminal = sys.stdout.isatty()
        self._told = time.monotonic()
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """A context in which it shows where the work stands also while nothing is finished."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_SECONDS):
                if not interrupts.signalled():
                    self.show("", urgent=False)

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
                tell(line)
            if self._terminal:
                sys.stdout.write(f"{ERASE}{printable(self.progress.line())}")
                sys.stdout.flush()
            elif not self._every_line and time.monotonic() - self._told >= EVERY_SECONDS:
                self._told = time.monotonic()
                tell(self.progress.line())

    def clear(self) -> None:
        """Remove the line that changes."""
        if self._terminal:
            sys.stdout.write(ERASE)
            sys.stdout.flush()

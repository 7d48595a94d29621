"""Shows how far a run is: on a terminal in a line that changes, elsewhere in a line now and then, or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from conformance.commands import interrupts
from conformance.commands.output import columns, tell
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
        stream: where to; None for the output stream.
        only_on_terminal: print nothing where the stream is no terminal.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        every_line: bool = False,
        stream: TextIO | None = None,
        only_on_terminal: bool = False,
    ) -> None:
        self.progress = progress
        self._every_line = every_line
        self._only_on_terminal = only_on_terminal
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._told = time.monotonic()
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """A context in which it shows where the work stands also while nothing is finished."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_SECONDS):
                if not interrupts.received_signal():
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
                room = (columns(self._stream) or 0) - 1  # a longer line would leave a row behind at each change
                self._stream.write(f"{ERASE}{printable(self.progress.line())[:room]}")
                self._stream.flush()
            elif not (self._every_line or self._only_on_terminal) and time.monotonic() - self._told >= EVERY_SECONDS:
                self._told = time.monotonic()
                tell(self.progress.line())

    def clear(self) -> None:
        """Remove the line that changes."""
        if self._terminal:
            self._stream.write(ERASE)
            self._stream.flush()

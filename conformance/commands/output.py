"""Prints messages and progress, and keeps the standard streams usable whatever is at their other end.

A run must not depend on who reads it. Characters that the encoding of a stream lacks become plain signs. If a stream
cannot be written, because its reader went away or a disk is full, what is printed is lost and the command goes on.
"""

import codecs
import contextlib
import errno
import io
import os
import select
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from conformance.errors import BELOW, UsageError
from conformance.show.text import paint, plain, printable, visible

PLAIN = "conformance.plain"  # the name of the error handler for characters that an encoding lacks
COLOURS = ("auto", "always", "never")
_colour = ["auto"]  # what a person has chosen


def say(text: str) -> None:
    """Print a message on the error stream. What it quotes cannot command the terminal."""
    print(f"conformance: {BELOW.join(map(visible, text.split(BELOW)))}", file=sys.stderr)  # noqa: T201 -- this is the interface


def tell(text: str) -> None:
    """Print a part of a report on the output stream. What it quotes cannot command the terminal."""
    shown = printable(text)
    print(paint(shown) if _is_coloured() else shown, flush=True)  # noqa: T201 -- this is the interface


def choose_colour(when: str) -> None:
    """Colour what `tell` prints "always", "never" or "auto": on a terminal unless NO_COLOR or TERM=dumb forbids it."""
    _colour[:] = [when]


def _is_coloured() -> bool:
    if _colour[0] != "auto":
        return _colour[0] == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO) -> int | None:
    """The width of a terminal; None if the stream is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def write(option: str, path: Path | None, text: Callable[[], str]) -> None:
    """Write a report to the file that an option of the command line names, if it is given.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(text(), encoding="utf-8")
    except OSError as problem:
        advice = "it is a folder; name a file in it" if path.is_dir() else ""
        advice = advice or ("" if path.parent.is_dir() else f"there is no folder {path.parent}; make it first")
        raise UsageError(f"{option} {path} cannot be written: {advice or problem.strerror}") from None


def progress(line: str) -> None:
    """Print a line of progress on the error stream, because the output stream may hold a page."""
    print(printable(line), file=sys.stderr, flush=True)  # noqa: T201


def make_streams_last() -> None:
    """Replace the standard streams of this process by streams that never raise an error."""
    codecs.register_error(PLAIN, _plain_signs)
    sys.stdout = sys.__stdout__ = _lasting(sys.stdout, 1)  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = _lasting(sys.stderr, 2)  # type: ignore[misc,assignment]


def what_was_lost() -> str:
    """Why the output stream could not be written; "" if it could, or if its reader just went away."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
    problem = raw.problem if isinstance(raw, _LastingFile) else None
    return "" if problem is None or problem.errno == errno.EPIPE else problem.strerror or str(problem)


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if stream is not None:
            stream.flush()
    buffer = io.BufferedWriter(_LastingFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding, PLAIN, line_buffering=True)


class _LastingFile(io.FileIO):
    """A descriptor that is written as long as that works.

    Attributes:
        problem: the first error; what is written after it is lost.
    """

    problem: OSError | None = None

    def write(self, data: object) -> int:
        """Write some bytes; returns how many."""
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        while self.problem is None:
            try:
                written = super().write(data)  # type: ignore[arg-type]
            except OSError as problem:
                self.problem = problem
                break
            if written is not None:
                return written
            select.select([], [self], [])  # the other end does not block, and has no room yet
        return size


def _plain_signs(problem: UnicodeError) -> tuple[str, int]:
    """The error handler: plain signs in place of the characters that cannot be encoded."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    return plain(problem.object[problem.start : problem.end]), problem.end

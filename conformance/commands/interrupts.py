"""Ends the command when a person or the system interrupts it: within seconds, and with everything that it started.

The first signal says how to go on, stops and kills all processes below this one, and raises KeyboardInterrupt in the
main thread. If the command still runs a few seconds later, whatever holds it, it is ended from another thread, and at
once by a further signal.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from conformance.errors import ExitCode
from conformance.process import process_table

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SECONDS, LAST_SECONDS = 3.5, 0.7  # until the command is ended by force, and for its last words
SAME_SECONDS = 0.5  # a key of a terminal, and what a parent makes of it, come as several signals
SWEEP_SECONDS = 0.1
STDOUT = 1


class Ending:
    """How the command ends.

    Attributes:
        code: its exit code; that of an interrupted command until it is set.
    """

    code: int = ExitCode.INTERRUPTED


@dataclass
class _Answer:
    """What this process does about a signal."""

    signalled: int = 0  # the first signal that came
    held: bool = False
    first_words: str = ""
    last_words: Callable[[], None] = lambda: None


_answer = _Answer()


@contextlib.contextmanager
def answer_signals() -> Iterator[Ending]:
    """Answer SIGINT, SIGTERM and SIGHUP as this module says. A signal that is ignored stays so (nohup)."""
    ending = Ending()
    numbers = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    woken, wakes = os.pipe()
    if hasattr(os, "set_blocking"):
        os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)  # the main thread may wait where no handler runs
    threading.Thread(target=_watch, args=(woken,), name="interrupt", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        for number in numbers:
            signal.signal(number, _interrupt)
        yield ending
    exec("")  # noqa: S102 -- one that an interrupt has left makes CPython end by SIGINT; the next one makes it forget
    for number in numbers:  # nothing is left to be done, but the interpreter has not left yet
        signal.signal(number, lambda *_: os._exit(ending.code))


def speak(first_words: str, last_words: Callable[[], None]) -> None:
    """Print the first words as soon as a signal comes, before anything else that may take long.

    The last words are for another thread, before the command is ended by force: what is done, and how to go on.
    """
    _answer.first_words, _answer.last_words = first_words, last_words


def received_signal() -> int:
    """The number of the signal that interrupted the command; 0 if none did."""
    return _answer.signalled


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Let the main thread finish what it does here, such as a report, in spite of a signal; it has `SECONDS`."""
    _answer.held = True
    try:
        yield
    finally:
        _answer.held = False


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Let SIGINT wait meanwhile. A process that is started here inherits that, until it calls `unblock`."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        unblock()


def unblock() -> None:
    """Take SIGINT again, also one that waits."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """The handler of the first signal."""
    for each in SIGNALS:
        if signal.getsignal(each) == _interrupt:
            signal.signal(each, lambda *_: None)  # for a further one, see `_watch`
    _answer.signalled = number
    _say_first_words()
    kill_everything_below()
    if not _answer.held:
        raise KeyboardInterrupt


def _say_first_words() -> None:
    """Print them past the stream of Python, which may be in the middle of a line; not where nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        if _answer.first_words and select.select([], [STDOUT], [], 0)[1]:
            os.write(STDOUT, f"\n{_answer.first_words}\n".encode(errors="backslashreplace"))


def kill_everything_below() -> None:
    """Kill all processes below this one. They are stopped first, so that none sees another die and reports that."""
    stopped: set[int] = set()
    while born := [pid for pid in process_table.descendants(os.getpid()) if pid not in stopped]:
        for pid in born:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        stopped.update(born)
    process_table.kill(stopped)


def _watch(woken: int) -> None:
    """Wait for a signal, and then let the process end in time, or at once if a further one comes."""
    began = 0.0
    while True:
        number, now = os.read(woken, 1)[0], time.monotonic()
        if number in SIGNALS and not began:
            began = now
            threading.Thread(target=_see_to_the_end, daemon=True).start()
        elif number in SIGNALS and now - began > SAME_SECONDS:
            kill_everything_below()
            os._exit(ExitCode.INTERRUPTED)


def _see_to_the_end() -> None:
    """Kill what threads of this process may still start, and end the process itself when its time is over."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(SWEEP_SECONDS)
        kill_everything_below()
    words = threading.Thread(target=_say_last_words, daemon=True)  # a stream may take none
    words.start()
    words.join(LAST_SECONDS)
    os._exit(ExitCode.INTERRUPTED)


def _say_last_words() -> None:
    with contextlib.suppress(BaseException):
        _answer.last_words()

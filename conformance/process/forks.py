"""Shares independent parts of the making of a reference with forks of this process, on cores that nothing else uses.

A part gives the same whoever runs it. A fork that fails in any way brings nothing, and this process runs its parts
itself: so errors are raised here, and a machine without room for a fork makes the same reference, only later.
"""

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from conformance.process import memory, process_table

T = TypeVar("T")

WORTH_SECONDS = 0.2  # parts that take less than this together are not worth a fork; so the first ones are tried
RESERVE = 2  # a fork needs no more memory than this process has needed so far; so many times as much must be free


@contextlib.contextmanager
def none_idle(most: int) -> Iterator[int]:  # noqa: ARG001 -- it is given what every such context is given
    """No core is idle."""
    yield 0


class Forks:
    """The forks that may help.

    Args:
        idle: holds idle cores while it is entered, at most so many as it is called with, and yields their number.
        between: called between parts while no fork runs one.
    """

    def __init__(
        self,
        idle: Callable[[int], contextlib.AbstractContextManager[int]] = none_idle,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._idle, self._between = idle, between
        self._pace = 0.0  # seconds of a part, as far as it is known

    def results(self, parts: Sequence[Callable[[], T]]) -> list[T]:
        """What the parts return, in their order.

        Raises:
            Whatever a part raises.
        """
        found: dict[int, T] = {}
        started = time.perf_counter()
        while len(found) < len(parts) and self._pace * (len(parts) - len(found)) < WORTH_SECONDS:
            self._between()
            found[len(found)] = parts[len(found)]()
            self._pace = (time.perf_counter() - started) / len(found)
        self._between()
        left = range(len(found), len(parts))
        with self._idle(_forks(len(left) - 1)) as cores, contextlib.ExitStack() as until_the_end:
            shares = [left[first :: cores + 1] for first in range(cores + 1)]
            forks: list[_Fork[T]] = []
            for share in shares[1:]:
                forks.append(_Fork({number: parts[number] for number in share}))
                until_the_end.callback(forks[-1].end)
            for number in shares[0]:
                if not forks and number != left[0]:
                    self._between()
                found[number] = parts[number]()
            self._pace = (time.perf_counter() - started) / max(1, len(found))
            for fork in forks:
                found.update(fork.results())
        return [found[number] if number in found else part() for number, part in enumerate(parts)]


ALONE = Forks()


class _Fork(Generic[T]):
    """A fork of this process that runs parts.

    Args:
        parts: the parts, by number.
    """

    def __init__(self, parts: dict[int, Callable[[], T]]) -> None:
        self._answers, writing = os.pipe()
        self._code = self._pid = -1
        with contextlib.suppress(OSError):  # the system starts no process
            self._pid = os.fork()
        if self._pid == 0:
            _serve(parts, writing)
        os.close(writing)

    def results(self) -> dict[int, T]:
        """What its parts have returned, by number; nothing if one of them or the fork has failed."""
        with os.fdopen(self._answers, "rb", closefd=False) as pipe:
            told = pipe.read()
        self._wait()
        found: dict[int, T] = pickle.loads(told) if told and self._code == 0 else {}  # noqa: S301 -- by this process's own fork
        return found

    def end(self) -> None:
        """Kill the fork, if it still runs."""
        if self._code < 0 < self._pid:
            process_table.kill([self._pid])
            self._wait()
        os.close(self._answers)

    def _wait(self) -> None:
        if self._pid > 0:
            self._code = 1  # unknown where a model ignores SIGCHLD, so that the system keeps none
            with contextlib.suppress(ChildProcessError):
                self._code = abs(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))


def _serve(parts: dict[int, Callable[[], T]], writing: int) -> None:
    """Run parts, send what they return, and end. It does not return."""
    code = 1
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps({number: part() for number, part in parts.items()}))
        code = 0
    finally:
        os._exit(code)


def _forks(most: int) -> int:
    """How many forks this process may make, at most so many.

    None unless this is its only thread: a fork has no other, and would wait for what they hold. So there are none where
    autograd has started its threads for GPUs.
    """
    if most <= 0 or sys.platform != "linux":
        return 0
    with contextlib.suppress(OSError):  # there is no /proc here
        needed = RESERVE * memory.needed()
        if needed and len(list(memory.SELF.joinpath("task").iterdir())) == 1:
            return min(most, memory.free() // needed)
    return 0

"""Keeps xdist's workers going: a cell may stop or kill the worker that judges it, and others take its work over."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from execnet import gateway_io
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from conformance.process import process_table

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

LOOK_SECONDS = 1.0
LOOKS = 10  # in a row; seconds would count while a person has stopped the whole run
STOPPED = "T"
START = "import sys; sys.path[:] = filter(None, sys.path); exec(eval(sys.stdin.readline()))"  # a worker's first line
ENOUGH = 2  # cells that a worker must know of before it starts one, unless it knows that no other comes


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler, which keeps a model's cells on one worker, made safe for workers that replace dead ones.

    xdist gives such a worker one model's cells. If that is one cell, the worker waits for the next one without end.
    """

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < ENOUGH:
            super()._reschedule(node)


def shield_from_terminal(group: Any) -> None:
    """Start all workers of an execnet group with SIGINT blocked: the main process alone answers the terminal."""
    make = group.makegateway

    def makegateway(*arguments: Any) -> Any:
        if not hasattr(signal, "pthread_sigmask"):
            return make(*arguments)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
        try:
            return make(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    group.makegateway = makegateway


def keep_working_folder_off_path() -> None:
    """Let workers import nothing from the working folder while they start; Python 3.10 knows no PYTHONSAFEPATH."""
    gateway_io.popen_bootstrapline = START


def serve_main_process() -> None:
    """Worker: end with the main process, and leave an interrupt to it. What a worker starts can be interrupted."""
    process_table.die_with_parent()
    signal.signal(signal.SIGINT, lambda *_: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class StoppedWorkers:
    """While it is entered, kills processes that this process started and that stay stopped (Linux)."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopped workers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        looks: dict[int, int] = {}
        while not self._over.wait(LOOK_SECONDS):
            stopped = [pid for pid in _children() if _state(pid) == STOPPED]
            looks = {pid: looks.get(pid, 0) + 1 for pid in stopped}
            process_table.kill(pid for pid, times in looks.items() if times >= LOOKS)


def _children() -> list[int]:
    return [pid for pid in process_table.descendants(os.getpid()) if process_table.parent_of(pid) == os.getpid()]


def _state(pid: int) -> str:
    """The letter of a process's state, such as R, S or T; "" if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""

"""Kills workers that stand still: a cell may stop the process that runs it, which then ends neither well nor badly."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.run import process_table

LOOK_SECONDS = 1.0
LOOKS = 10  # in a row; seconds would count while a person has stopped the whole run
STOPPED = "T"


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

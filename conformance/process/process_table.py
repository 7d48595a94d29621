"""Finds and kills processes: those below a process, and process groups, where the system tells of them.

Linux tells everything. macOS has process groups and no `/proc`, so what left its group stays. Windows has neither.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

TABLE = Path("/proc")


def parent_of(pid: int) -> int:
    """The parent's process id; 0 if it is unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((TABLE / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def descendants(pid: int) -> list[int]:
    """Every process below a process; none where there is no `/proc`."""
    children: dict[int, list[int]] = {}
    for entry in TABLE.glob("[0-9]*"):
        children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, pending = [], [pid]
    while pending:
        born = children.get(pending.pop(), [])
        found += born
        pending += born
    return found


def waiting_seconds(pid: int) -> dict[str, float]:
    """The seconds that each thread of a process, and of those below it, has waited for a core; none where unknown."""
    found = {}
    for process in (pid, *descendants(pid)):
        for file in (TABLE / str(process)).glob("task/*/schedstat"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                found[str(file)] = int(file.read_text().split()[1]) / 1e9
    return found


def session_of(pid: int) -> int:
    """The session of a process; 0 if it is unknown."""
    if hasattr(os, "getsid"):
        with contextlib.suppress(OSError):
            return os.getsid(pid)
    return 0


def kill(pids: Iterable[int]) -> None:
    """Kill processes at once, as far as this process may. Those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows, SIGTERM ends a process at once


def kill_group(leader: int) -> None:
    """Kill everything below a process, what is left in its group, and the process: no compiler outlives its cell."""
    kill(descendants(leader))
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(leader, getattr(signal, "SIGKILL", signal.SIGTERM))
    kill([leader])


def has_groups() -> bool:
    """Whether this system has process groups, which are killed as one."""
    return hasattr(os, "killpg") and hasattr(os, "setsid")


def how_it_died(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` gives it."""
    return f"killed by {name_of_signal(-code)}" if code < 0 else f"left with exit code {code}"


def name_of_signal(number: int) -> str:
    """The name of a signal; a real-time signal has a number only."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"

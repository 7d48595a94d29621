"""Finds and kills processes, and ties their lives to that of the run, so that nothing of a cell outlives it.

Linux tells everything. macOS has process groups and no `/proc`, so what left its group stays. Windows has neither.
"""

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TABLE, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows, SIGTERM ends a process at once
PR_SET_PDEATHSIG = 1


def say_memory_limit() -> str:
    """How much memory the system grants this process at most, in words; "" if no limit is known.

    Limits are those of `ulimit -v`, and of a control group of version 2.
    """
    found = {}
    if resource is not None and (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        found["ulimit -v"] = most
    with contextlib.suppress(OSError):
        own = (TABLE / "self" / "cgroup").read_text().splitlines()[-1].partition("::")[2]
        for folder in (GROUPS / own[1:], *(GROUPS / own[1:]).parents):
            with contextlib.suppress(OSError, ValueError):
                found["the control group"] = int((folder / "memory.max").read_text())
                break
    return " and ".join(f"{what} allows {most / 1e9:.1f} GB" for what, most in found.items())


def parent_of(pid: int) -> int:
    """The parent's process id; 0 if it is unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((TABLE / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def descendants(pid: int, beside: Collection[int] = ()) -> list[int]:
    """Every process below a process, but for some and those below them; none where there is no `/proc`."""
    children: dict[int, list[int]] = {}
    for entry in TABLE.glob("[0-9]*"):
        if int(entry.name) not in beside:
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
    with contextlib.suppress(OSError, AttributeError):
        return os.getsid(pid)
    return 0


def kill(pids: Iterable[int]) -> None:
    """Kill processes at once, as far as this process may. Those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, KILL)


def kill_group(leader: int) -> None:
    """Kill everything below a process, what is left in its group, and the process: no compiler outlives its cell."""
    kill(descendants(leader))
    with contextlib.suppress(OSError, AttributeError):
        os.killpg(leader, KILL)
    kill([leader])


def hear_of_children() -> None:
    """Take every signal, as a new process does: one whose parent ignores or blocks SIGCHLD hears of no child's end."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


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


# Ties the life of a process group to a pipe or socket: when its other end is closed, the kernel kills the group.
#
# Only the process of the run holds the other end. So whatever ends the run, SIGKILL included, ends its cells with their
# compilers, even if a cell hangs in native code. Linux does this with a signal for input; elsewhere a thread reads the
# pipe, which a hang that keeps the interpreter's lock can delay.


def tie(descriptor: int) -> None:
    """Let this process's group be killed when the other end is closed. Nothing else may arrive any more.

    Args:
        descriptor: the reading end of a pipe, or a socket. It stays open.
    """
    if hasattr(os, "getpgid") and os.getpgid(0) != os.getpid():
        return  # the group is that of another process, which must not die
    if _tie_by_kernel(descriptor):
        if select.select([descriptor], [], [], 0)[0]:  # it was closed before
            _end_group()
        return
    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()


def untie(descriptor: int) -> None:
    """Undo `tie` on a system where the kernel does it."""
    import fcntl  # noqa: PLC0415 -- not on Windows

    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~fcntl.FASYNC)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, KILL)


def _tie_by_kernel(descriptor: int) -> bool:
    """Whether the kernel now watches; it does on Linux."""
    try:
        import fcntl  # noqa: PLC0415 -- not on Windows

        fcntl.fcntl(descriptor, fcntl.F_SETSIG, KILL)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | fcntl.FASYNC)
    except (ImportError, AttributeError, OSError):
        return False
    return True


def _watch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):
            pass
        _end_group()


def _end_group() -> None:
    kill_group(os.getpid())
    os._exit(1)

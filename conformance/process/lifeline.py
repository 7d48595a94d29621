"""Ties the life of a process group to a pipe or socket: when its other end is closed, the kernel kills the group.

Only the process of the run holds the other end. So whatever ends the run, SIGKILL included, ends its cells with their
compilers, even if a cell hangs in native code. Linux does this with a signal for input; elsewhere a thread reads the
pipe, which a hang that keeps the interpreter's lock can delay.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading

from conformance.process import process_table

PR_SET_PDEATHSIG = 1


def tie(descriptor: int) -> None:
    """Let this process's group be killed when the other end is closed. Nothing else may arrive any more.

    Args:
        descriptor: the reading end of a pipe, or a socket. It stays open.
    """
    if hasattr(os, "getpgid") and os.getpgid(0) != os.getpid():
        return  # the group is that of another process, which must not die
    if _tie_by_kernel(descriptor):
        if select.select([descriptor], [], [], 0)[0]:  # it was closed before
            _end()
        return
    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()


def untie(descriptor: int) -> None:
    """Undo `tie` on a system where the kernel does it."""
    import fcntl  # noqa: PLC0415

    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~fcntl.FASYNC)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _tie_by_kernel(descriptor: int) -> bool:
    """Whether the kernel now watches; it does on Linux."""
    try:
        import fcntl  # noqa: PLC0415 -- not on Windows

        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | fcntl.FASYNC)
    except (ImportError, AttributeError, OSError):
        return False
    return True


def _watch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):
            pass
        _end()


def _end() -> None:
    process_table.kill_group(os.getpid())
    os._exit(1)

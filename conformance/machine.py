"""One lock for the whole machine: cells share it, a measurement has it alone.

Two files, so that nobody starves: whoever comes passes the turnstile, and who measures keeps it shut. The system
takes both back from a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

TURNSTILE, ROOM = "torch-conformance-turnstile.lock", "torch-conformance-room.lock"


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Work that may go on beside other work, and never beside a measurement."""
    with _opened(ROOM) as room:
        with _opened(TURNSTILE) as turnstile:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A measurement: waits until all others are done, and keeps new ones out."""
    with _opened(TURNSTILE) as turnstile, _opened(ROOM) as room:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    path = Path(tempfile.gettempdir()) / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's, which may be locked all the same
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

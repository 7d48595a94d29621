"""Locks the whole machine: cells share the lock, and a measurement holds it alone.

A cell holds one of many slots. A measurement holds all of them. Everyone takes the turnstile lock first; a measurement
keeps it while it waits, so that new cells cannot starve it. The system releases the locks of a process that dies.

The process that does the work holds the lock: a child for itself, and the process that compares two revisions for its
workers.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

FOLDER = "torch-conformance-locks"
SLOTS = 64  # cells that may run at the same time
POLL_SECONDS = 0.1  # a waiting process must not disturb the measurement that it waits for


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Hold one slot: other cells may run at the same time, but no measurement."""
    with _lock("turnstile").acquire(poll_interval=POLL_SECONDS):
        slot = _free_slot()
    try:
        yield
    finally:
        slot.release()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold all slots: wait until all other work is done, and keep new work out."""
    with contextlib.ExitStack() as held:
        for name in ("turnstile", *map(_slot, range(SLOTS))):
            held.enter_context(_lock(name).acquire(poll_interval=POLL_SECONDS))
        yield


def _free_slot() -> FileLock:
    first = os.getpid() % SLOTS
    while True:
        for number in range(first, first + SLOTS):
            slot = _lock(_slot(number % SLOTS))
            with contextlib.suppress(Timeout):
                slot.acquire(blocking=False)
                return slot
        time.sleep(POLL_SECONDS)


def _slot(number: int) -> str:
    return f"slot-{number}"


def _lock(name: str) -> FileLock:
    folder = Path(tempfile.gettempdir()) / FOLDER
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            folder.chmod(0o777)  # for every user of the machine
    return FileLock(folder / f"{name}.lock", mode=0o666)

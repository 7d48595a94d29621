"""Locks the whole machine: cells share the lock, and a measurement holds it alone.

A cell holds one of many slots. A measurement holds all of them. Everyone takes the turnstile lock first; a measurement
keeps it while it waits, so that new cells cannot starve it. The system releases the locks of a process that dies.

The process that does the work holds the lock: a child for itself, and the process that compares two revisions for its
workers. The locks are files in a folder for every user of the machine; if that cannot be used, in one of this user; if
that cannot either, nothing is locked. Then a remark says so, because measurements may disturb each other.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

FOLDER = "torch-conformance-locks"
SLOTS = 64  # cells that may run at the same time
POLL_SECONDS = 0.1  # a waiting process must not disturb the measurement that it waits for
UNLOCKED = "no folder takes the lock of the machine, so measurements and cells do not wait for each other"
UNUSABLE = (OSError, NotImplementedError)  # what a lock raises in a folder, or on a file system, that takes none


@contextlib.contextmanager
def shared() -> Iterator[str]:
    """Hold one slot: other cells may run at the same time, but no measurement. Yields a remark, "" if it is held."""
    held, remark = _in_the_first_folder(_take_a_slot)
    with held:
        yield remark


@contextlib.contextmanager
def alone() -> Iterator[str]:
    """Hold all slots: wait until other work is done, and keep new work out. Yields a remark, "" if they are held."""
    held, remark = _in_the_first_folder(_take_all)
    with held:
        yield remark


def _in_the_first_folder(take: Callable[[Path, contextlib.ExitStack], None]) -> tuple[contextlib.ExitStack, str]:
    """Take locks in the first folder that holds them."""
    for parent, name in ((tempfile.gettempdir, FOLDER), (_home, f".{FOLDER}")):
        with contextlib.suppress(*UNUSABLE), contextlib.ExitStack() as held:
            folder = Path(parent()) / name
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                with contextlib.suppress(OSError):
                    folder.chmod(0o777)  # for every user of the machine
            take(folder, held)
            return held.pop_all(), ""
    return contextlib.ExitStack(), UNLOCKED


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError as problem:  # this user has none
        raise FileNotFoundError(str(problem)) from None


def _take_a_slot(folder: Path, held: contextlib.ExitStack) -> None:
    with _lock(folder, "turnstile").acquire(poll_interval=POLL_SECONDS):
        held.callback(_free_slot(folder).release)


def _take_all(folder: Path, held: contextlib.ExitStack) -> None:
    for name in ("turnstile", *map(_slot, range(SLOTS))):
        held.enter_context(_lock(folder, name).acquire(poll_interval=POLL_SECONDS))


def _free_slot(folder: Path) -> FileLock:
    first = os.getpid() % SLOTS
    while True:
        for number in range(first, first + SLOTS):
            slot = _lock(folder, _slot(number % SLOTS))
            with contextlib.suppress(Timeout):
                slot.acquire(blocking=False)
                return slot
        time.sleep(POLL_SECONDS)


def _slot(number: int) -> str:
    return f"slot-{number}"


def _lock(folder: Path, name: str) -> FileLock:
    return FileLock(folder / f"{name}.lock", mode=0o666)

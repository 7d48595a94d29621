"""Locks the whole machine: cells share the lock, and a measurement holds it alone.

A cell holds one of many slots, and so does each fork that helps to make a reference. A measurement holds all of them.
Everyone takes the turnstile lock first; a measurement keeps it while it waits, so that new cells cannot starve it. What
takes minutes, as the reference of a large model does, gives way between its parts: else the measurement of another run
would wait for it, and all others for the measurement. The system releases the locks of a process that dies.

The process that does the work holds the lock. The locks are files in a folder for every user of the machine; if that
cannot be used, in one of this user; if that cannot either, nothing is locked. Nobody waits for ever: whoever holds the
lock may have been stopped. In both cases a remark says so, because measurements may disturb each other.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from conformance.process import environment

if TYPE_CHECKING:
    from typing_extensions import Self  # torch brings it

FOLDER = "torch-conformance-locks"
SLOTS = 64  # cells that may run at the same time
POLL_SECONDS = 0.1  # a waiting process must not disturb the measurement that it waits for
UNLOCKED = "no folder takes the lock of the machine, so measurements and cells do not wait for each other"
PATIENCE_SECONDS = 900.0  # to wait for the machine; nothing that holds the lock takes longer, unless a person asks
IMPATIENT = "other work did not leave the machine within {:g} s, so this did not wait for it any longer"
UNUSABLE = (OSError, NotImplementedError)  # what a lock raises in a folder, or on a file system, that takes none


class Slot:
    """One slot, which this process holds while it is in the context: other cells may run, but no measurement.

    Attributes:
        remark: what a run should know of it; "" if it is held.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._held, self.remark = _in_the_first_folder(_take_a_slot)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *problem: object) -> None:
        self._held.close()

    def is_in_the_way(self) -> bool:
        """Whether somebody waits for the machine, most likely a measurement. In a fork, the slot is not its own."""
        return not self.remark and os.getpid() == self._owner and is_taken()

    def give_way(self) -> None:
        """Let go of the slot, and take one again behind those who wait."""
        self._held.close()
        self._held, self.remark = _in_the_first_folder(_take_a_slot)


def is_taken() -> bool:
    """Whether somebody holds the machine alone or waits for it, so that no cell can start."""
    free: list[bool] = []
    _in_the_first_folder(lambda folder, held, until: free.append(_is_free(folder, "turnstile")))  # noqa: ARG005
    return not all(free)


@contextlib.contextmanager
def alone() -> Iterator[str]:
    """Hold all slots: wait until other work is done, and keep new work out. Yields a remark, "" if they are held."""
    held, remark = _in_the_first_folder(_take_all)
    with held:
        yield remark


@contextlib.contextmanager
def idle(most: int) -> Iterator[int]:
    """Hold a slot for each core that nothing else uses, at most so many, and yield their number. It never waits."""
    slots: list[str] = []

    def take(folder: Path, held: contextlib.ExitStack, until: float) -> None:  # noqa: ARG001
        with _lock(folder, "turnstile").acquire(blocking=False):
            free = [name for name in map(_slot, range(SLOTS)) if _is_free(folder, name)]
            slots[:] = free[: max(0, min(most, environment.cores() - (SLOTS - len(free))))]
            for name in slots:
                held.enter_context(_lock(folder, name).acquire(blocking=False))

    held, remark = _in_the_first_folder(take) if most > 0 else (contextlib.ExitStack(), "")
    with held:
        yield 0 if remark else len(slots)


def _in_the_first_folder(take: Callable[[Path, contextlib.ExitStack, float], None]) -> tuple[contextlib.ExitStack, str]:
    """Take locks in the first folder that holds them."""
    until = time.monotonic() + PATIENCE_SECONDS
    for parent, name in ((tempfile.gettempdir, FOLDER), (_home, f".{FOLDER}")):
        with contextlib.suppress(*UNUSABLE), contextlib.ExitStack() as held:
            folder = Path(parent()) / name
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                with contextlib.suppress(OSError):
                    folder.chmod(0o777)  # for every user of the machine
            try:
                take(folder, held, until)
            except Timeout:
                return contextlib.ExitStack(), IMPATIENT.format(PATIENCE_SECONDS)
            return held.pop_all(), ""
    return contextlib.ExitStack(), UNLOCKED


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError as problem:  # this user has none
        raise FileNotFoundError(str(problem)) from None


def _take_a_slot(folder: Path, held: contextlib.ExitStack, until: float) -> None:
    with _acquire(_lock(folder, "turnstile"), until):
        held.callback(_free_slot(folder, until).release)


def _take_all(folder: Path, held: contextlib.ExitStack, until: float) -> None:
    for name in ("turnstile", *map(_slot, range(SLOTS))):
        held.enter_context(_acquire(_lock(folder, name), until))


def _acquire(lock: FileLock, until: float) -> contextlib.AbstractContextManager[object]:
    return lock.acquire(timeout=max(0.0, until - time.monotonic()), poll_interval=POLL_SECONDS)


def _free_slot(folder: Path, until: float) -> FileLock:
    first = os.getpid() % SLOTS
    while True:
        for number in range(first, first + SLOTS):
            slot = _lock(folder, _slot(number % SLOTS))
            with contextlib.suppress(Timeout):
                slot.acquire(blocking=False)
                return slot
        if time.monotonic() >= until:
            raise Timeout(str(folder))
        time.sleep(POLL_SECONDS)


def _is_free(folder: Path, name: str) -> bool:
    with contextlib.suppress(Timeout), _lock(folder, name).acquire(blocking=False):
        return True
    return False


def _slot(number: int) -> str:
    return f"slot-{number}"


def _lock(folder: Path, name: str) -> FileLock:
    return FileLock(folder / f"{name}.lock", mode=0o666)

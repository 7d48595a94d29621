"""Counts the starts of each cell that never ended, so that a cell which takes the run down is found.

A cell may kill the process that runs it. Before a cell starts, that process adds a byte to a file of the cell; when the
cell has a verdict, the file goes. What remains tells which cells ran when a process died. Such a cell is under
suspicion: it runs again alone, so that no other cell is blamed. If the process dies once more, the cell did it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

POLL_SECONDS = 0.02
GUILTY = 2  # starts that took the run down, the last one alone
MARK, LOCK = ".starts", ".lock"


class Attempts:
    """The starts of the cells of one run that never ended.

    Args:
        folder: a folder for files of this class alone; it is made when the first cell starts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lost(self, cell: str) -> int:
        """How many starts of a cell never ended."""
        try:
            return self._mark(cell).lstat().st_size
        except OSError:
            return 0

    @contextlib.contextmanager
    def attempt(self, cell: str) -> Iterator[None]:
        """Record the start of a cell, and its end unless this process ends first. A cell under suspicion runs alone.

        Raises:
            OSError: the start cannot be recorded.
        """
        self._folder.mkdir(exist_ok=True)
        turnstile, own = self._lock("turnstile"), self._lock(str(os.getpid()))
        with contextlib.ExitStack() as held:
            with turnstile:
                if self.lost(cell):
                    held.enter_context(turnstile)  # so nobody else starts
                    self._wait_for_others()
                else:
                    held.enter_context(own)
            _add_a_byte(self._mark(cell))
            try:
                yield
            except Exception:
                self._mark(cell).unlink(missing_ok=True)
                raise
            self._mark(cell).unlink(missing_ok=True)

    def forget(self, cell: str) -> None:
        """Forget the lost starts of a cell, because it has its verdict."""
        self._mark(cell).unlink(missing_ok=True)

    def prepare(self) -> None:
        """Remove everything but marks, before a run goes on: the folder may come from somebody else.

        Raises:
            OSError: it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(self._folder.lstat().st_mode):
                self._folder.unlink()  # a link is removed and not followed
                return
            for entry in self._folder.iterdir():
                if entry.suffix != MARK or not stat.S_ISREG(entry.lstat().st_mode):
                    entry.unlink()

    def acquit(self) -> None:
        """Forget all but one start of each cell: somebody interrupted the run, so its end proves nothing."""
        with contextlib.suppress(OSError):
            for mark in self._folder.glob(f"*{MARK}"):
                os.truncate(mark, 1)

    def clear(self) -> None:
        """Remove the folder unless a start in it never ended. Call it when nothing runs."""
        with contextlib.suppress(OSError):
            if not self._folder.is_symlink() and not any(self._folder.glob(f"*{MARK}")):
                shutil.rmtree(self._folder)

    def _wait_for_others(self) -> None:
        for path in self._folder.glob(f"[0-9]*{LOCK}"):
            with FileLock(path, poll_interval=POLL_SECONDS):
                pass

    def _mark(self, cell: str) -> Path:
        name = hashlib.blake2b(cell.encode(errors="backslashreplace"), digest_size=8).hexdigest()
        return self._folder / f"{name}{MARK}"

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._folder / f"{name}{LOCK}", poll_interval=POLL_SECONDS)


def _add_a_byte(path: Path) -> None:
    """Add a byte to a file, on the disk when this returns: the machine itself may go down next."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = os.open(path, flags, 0o666)
    try:
        os.write(file, b".")
        os.fsync(file)
    finally:
        os.close(file)

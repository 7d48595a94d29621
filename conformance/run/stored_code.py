"""Decides whether the stored code of the compile cache may have spoiled a verdict, and sets a damaged cache aside."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path
from tempfile import mkdtemp

from conformance.records.verdicts import Verdict
from conformance.run import environment
from conformance.run.child_side import WAITING

SPOILED = ("ERROR", "CRASH")  # how a cell ends whose stored code is damaged
BEFORE_COMPILING = ("start", WAITING, "reference", "import", "build")  # phases in which nothing is compiled
NO_COMPILER = "NoCompilerError"


class StoredCode:
    """The compile cache of a run, as the process that judges its cells finds it.

    Args:
        compiling_modes: the modes that use it.

    Attributes:
        damaged: it has proved damaged. Then the fork server may have read it, and starts no more compiled cells.
    """

    def __init__(self, compiling_modes: Collection[str]) -> None:
        self._modes = compiling_modes
        self._folder = environment.cache_in_use()
        self._found: tuple[int, int] | None = None
        self.damaged = False

    def look(self) -> None:
        """Note which folder is there before a cell starts; code that comes later is of this run's own cells."""
        self._found = self._found or _identity(self._folder)

    def is_used_by(self, mode: str) -> bool:
        """Whether cells of a mode use it."""
        return mode in self._modes

    def may_have_spoiled(self, mode: str, verdict: Verdict) -> bool:
        """Whether a verdict may be of damaged code, and not of the model. Nobody blames code that was not there."""
        seen = verdict.observation
        return (
            self.is_used_by(mode)
            and self._found is not None
            and verdict.status in SPOILED
            and seen.phase not in BEFORE_COMPILING
            and seen.error != NO_COMPILER
        )

    def set_aside(self) -> None:
        """Remove the damaged cache. If another process has done so already, the new one in its place stays."""
        self.damaged = True
        if self._folder is not None and _identity(self._folder) == self._found:
            set_aside(self._folder)


def set_aside(folder: Path) -> None:
    """Remove a cache at once, however long its files take; processes that have loaded its code keep it."""
    with contextlib.suppress(OSError):
        aside = Path(mkdtemp(prefix=f"{folder.name}-damaged-", dir=folder.parent))
        folder.rename(aside / folder.name)
        shutil.rmtree(aside, ignore_errors=True)


def _identity(folder: Path | None) -> tuple[int, int] | None:
    """What tells a folder from a new one at the same path; None if there is nothing in it."""
    with contextlib.suppress(OSError):
        if folder is not None and any(folder.iterdir()):
            found = folder.stat()
            return found.st_dev, found.st_ino
    return None

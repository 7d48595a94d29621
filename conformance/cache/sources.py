"""Computes the digests of the source files that a run depends on, to notice that one has changed."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from conformance.errors import UsageError

INSTALLED = {"site-packages", "dist-packages"}
METADATA = {".dist-info", ".egg-info"}
LARGEST = 64 * 2**20  # bytes of a source file; what is larger is none


def digest(path: Path) -> str:
    """The digest of a file's content; "" if it is no regular file that can be read."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a FIFO is not waited for
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            return ""
        content = hashlib.blake2b(digest_size=16)
        while part := os.read(file, 2**20):
            content.update(part)
        return content.hexdigest()
    finally:
        os.close(file)


def digests_of_imported() -> dict[str, str]:
    """The digests of all modules that this process has imported, by file; without installed ones and Python's own."""
    found = {str(path): digest(path) for path in own(_modules())}
    return {path: content for path, content in sorted(found.items()) if content}


def own(paths: Iterable[Path]) -> Iterator[Path]:
    """Those of some resolved paths that are neither installed nor Python's own."""
    pythons = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    for path in paths:
        if INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(folder) for folder in pythons):
            yield path


def installed_packages() -> tuple[str, ...]:
    """The installed packages with their versions, as the folders of their metadata name them."""
    folders = {path for path in map(Path, sys.path) if path.name in INSTALLED and path.is_dir()}
    return tuple(sorted(entry.name for folder in folders for entry in folder.iterdir() if entry.suffix in METADATA))


def search_path() -> tuple[str, ...]:
    """The folders from which modules are imported that are neither installed nor Python's own, in their order.

    Two checkouts of a package have modules of the same names, so a name alone does not tell which code is meant.
    """
    return tuple(dict.fromkeys(str(path) for path in own(Path(entry).resolve() for entry in sys.path)))


def _modules() -> Iterator[Path]:
    """The resolved path of each module: first of its folder, because some two thousand modules share few folders."""
    resolved = cache(os.path.realpath)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            folder, name = os.path.split(file)
            path = Path(resolved(folder), name)
            yield path.resolve() if path.is_symlink() else path


# Finds the models that installed packages bring: the entry points of the group `conformance.models`.

GROUP = "conformance.models"


def place_of(name: str) -> str:
    """The module that an installed package declares under a name, such as "package.specs"; "" if none does.

    Raises:
        UsageError: two packages declare different modules under it.
    """
    entries = metadata.entry_points(group=GROUP, name=name)
    found = {entry.value: entry.dist.name if entry.dist else "?" for entry in entries}
    if len(found) > 1:
        places = " and ".join(f"{module} by {package}" for module, package in sorted(found.items()))
        raise UsageError(f"{name!r} is declared twice in the group {GROUP}: as {places}; name the module")
    return next(iter(found), "")

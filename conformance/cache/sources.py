"""Tells what a run depends on: sources, the files and variables that Python code reads, and installed packages.

Each is told by a digest, to notice that it has changed. What native code opens is not seen, as `torch.jit.load` and
safetensors do; see `evaluate.weights`.
"""

import contextlib
import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from conformance.errors import UsageError
from conformance.process import environment

INSTALLED = {"site-packages", "dist-packages"}
METADATA = {".dist-info", ".egg-info"}
LARGEST = 64 * 2**20  # bytes of a source file; what is larger is none
UNREAL = tuple(map(Path, ("/proc", "/sys", "/dev")))  # what lies there changes by itself
GROUP = "conformance.models"  # the entry points of packages that bring models

_paths: set[str] = set()
_hooked: list[bool] = []  # whether this process notes files; an audit hook stays for the life of a process


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


def place_of(name: str) -> str:
    """The module that an installed package declares under a name of models, such as "package.specs"; "" if none does.

    Raises:
        UsageError: two packages declare different modules under it.
    """
    entries = metadata.entry_points(group=GROUP, name=name)
    found = {entry.value: entry.dist.name if entry.dist else "?" for entry in entries}
    if len(found) > 1:
        places = " and ".join(f"{module} by {package}" for module, package in sorted(found.items()))
        raise UsageError(f"{name!r} is declared twice in the group {GROUP}: as {places}; name the module")
    return next(iter(found), "")


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _hooked[0]:
        path, _, flags = arguments
        if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & os.O_ACCMODE != os.O_WRONLY:
            _paths.add(str(Path(os.fsdecode(path)).absolute()))


@contextlib.contextmanager
def note_files() -> Iterator[set[str]]:
    """A context that gives the absolute paths of the files that Python code opens in it to read."""
    if not _hooked:
        sys.addaudithook(_note)
    _hooked[:] = [True]
    _paths.clear()
    try:
        yield _paths
    finally:
        _hooked[:] = [False]


def contents_of_files(paths: set[str]) -> dict[str, str]:
    """What tells the content of each file, by path; without installed files, Python's own and compiled ones."""
    noted = list(paths)  # to read them here is noted too
    lasting = (
        path
        for path in own(Path(path).resolve() for path in noted)
        if path.suffix != ".pyc" and not any(path.is_relative_to(folder) for folder in UNREAL)
    )
    found = {str(path): content_of_file(path) for path in lasting}
    return {path: what for path, what in sorted(found.items()) if what}


def content_of_file(path: Path) -> str:
    """The digest of a file, or its size and age if it is too large for one; "" if there is no regular file."""
    found = digest(path)
    if not found and path.is_file():
        status = path.stat()
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return found


class Watch:
    """Tells which files have changed. One that nobody has written to since it was read is not read again."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}

    def changed(self, known: Mapping[str, str]) -> list[str]:
        """The files that do not hold what is known of them, as `content_of_file` tells it, by path."""
        return [path for path, what in known.items() if not self._holds(path, what)]

    def _holds(self, path: str, what: str) -> bool:
        state = _state(path)
        if not state or self._held.get((path, what)) != state:
            if content_of_file(Path(path)) != what:
                return False
            self._held[path, what] = state
        return True


def written_since(paths: Iterable[str], moment: int) -> list[str]:
    """The files that were written or replaced after a moment, in nanoseconds as of `time.time_ns`."""
    return [path for path in paths if _state(path)[-1:] > (moment,)]


def _state(path: str) -> tuple[int, ...]:
    """What changes with each write to a file, or is another in one that replaces it; () if there is no file."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return ()
    return status.st_ino, status.st_size, status.st_ctime_ns  # unlike the time of the content, nobody can set it


@contextlib.contextmanager
def note_variables() -> Iterator[set[str]]:
    """A context that gives the names of the variables that Python code asks for in it."""
    names: set[str] = set()
    kind = type(os.environ)
    plain = kind.__getitem__

    def noting(self: Any, name: Any) -> Any:
        names.add(os.fsdecode(name))
        return plain(self, name)

    with mock.patch.object(kind, "__getitem__", noting):
        yield names


def contents_of_variables(names: set[str]) -> dict[str, str]:
    """What tells the value of each variable, by name; without those that this project sets itself."""
    return {name: content_of_variable(name) for name in sorted(names.difference(environment.OWN))}


def content_of_variable(name: str) -> str:
    """The digest of a variable, because it may hold a secret; "" if it is not set."""
    value = os.environ.get(name)
    return "" if value is None else hashlib.blake2b(os.fsencode(value), digest_size=16).hexdigest()

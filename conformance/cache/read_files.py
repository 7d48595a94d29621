"""Notes which files a process reads, so that what it makes of them is made again when one changes.

Files that native code opens are not seen, as `torch.jit.load` and safetensors do; see `evaluate.weights`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from conformance.cache import sources
from conformance.process import environment

UNREAL = tuple(map(Path, ("/proc", "/sys", "/dev")))  # what lies there changes by itself

_paths: set[str] = set()
_hooked: list[bool] = []  # whether this process notes; an audit hook stays for the life of a process


def _lasts(path: Path) -> bool:
    return path.suffix != ".pyc" and not any(path.is_relative_to(folder) for folder in UNREAL)


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


def contents(paths: set[str]) -> dict[str, str]:
    """What tells the content of each file, by path; without installed files, Python's own and compiled ones."""
    noted = list(paths)  # to read them here is noted too
    found = {str(path): content(path) for path in sources.own(Path(path).resolve() for path in noted) if _lasts(path)}
    return {path: what for path, what in sorted(found.items()) if what}


def content(path: Path) -> str:
    """The digest of a file, or its size and age if it is too large for one; "" if there is no regular file."""
    found = sources.digest(path)
    if not found and path.is_file():
        status = path.stat()
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return found


# Notes which environment variables a process reads. What native code reads is not seen, as with files.


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

"""Opens and writes the files of a run folder: regular files only, never through a link, never of any size.

A run folder may come from somebody else. A link in it could lead out of it, a FIFO would be waited for without end,
and a huge file would fill the memory.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from conformance.errors import StoreError, UsageError

# A FIFO or a device does not block, a link is not followed. Windows has neither of these flags, nor such files.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def read(path: Path, largest: int) -> bytes:
    """The content of a file.

    Args:
        path: path of the file.
        largest: more bytes than this are refused.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: it is no regular file, it is larger, or it cannot be read.
    """
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise UsageError(f"{path} has {size} bytes; this version reads at most {largest}")
        try:
            return file.read(size)
        except MemoryError:
            raise UsageError(f"{path} has {size} bytes, and the memory holds no more") from None
        except OSError as problem:
            raise UsageError(f"{path} cannot be read: {problem.strerror}") from None


def open_to_append(path: Path) -> int:
    """The descriptor of a file that is made if it does not exist.

    Raises:
        UsageError: it is no regular file, or cannot be opened.
    """
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes, however few the system takes at a time, and wait until they are on the disk.

    Raises:
        OSError: the system did not take them.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; what stood at the path before is replaced, and never followed.

    Raises:
        StoreError: the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL | _BYTES, 0o666)
        try:
            write_all(file, data)
        finally:
            os.close(file)
        os.replace(draft, path)  # noqa: PTH105 -- failures of this call are tried one by one
        keep_names(path.parent)
    except OSError as problem:
        raise StoreError(f"{path} cannot be written: {problem.strerror}") from None


def keep_names(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk; Windows has no such call.

    Raises:
        OSError: the system could not do it.
    """
    if os.name == "nt":
        return
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _BYTES)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """Make a folder unless it exists.

    Raises:
        StoreError: it cannot be made, or a link or another file stands in its place.
    """
    try:
        path.mkdir(exist_ok=True)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise StoreError(f"{path} is no folder but a link; nothing is written through it")
    except OSError as problem:
        raise StoreError(f"{path} cannot be made: {problem.strerror}") from None


def remove(path: Path) -> None:
    """Remove a folder with all its files, or whatever else stands at a path; a link is removed and not followed.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as problem:
        raise StoreError(f"{path} cannot be removed: {problem.strerror}") from None


def refuse_others(path: Path) -> None:
    """Refuse what is there but is no regular file; a file that is absent is right.

    Raises:
        UsageError: a link, a FIFO, a folder or a device stands at the path.
    """
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(kind):
        raise UsageError(f"{path} is no regular file")


def _open(path: Path, flags: int) -> int:
    refuse_others(path)  # if it changes meanwhile, the flags below neither follow a link nor wait
    try:
        return os.open(path, flags | _CAREFUL | _BYTES, 0o666)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise UsageError(f"{path} cannot be opened: {problem.strerror}") from None

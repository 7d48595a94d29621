"""Notes the sums of the files in the compile cache after a run, and finds a damaged file before the next one.

torch loads stored code unchecked, and code with a flipped bit may compute something else. The sums find damage; who
writes them anew can store any code.
"""

from __future__ import annotations

import contextlib
import json
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from conformance.errors import UsageError
from conformance.run import regular_file

NOTED = "conformance-sums.json"
LOCK = ".lock"  # files that only lock others
LARGEST = 2**26  # bytes of the notes, which take some 150 for each file
CHUNK = 2**20

Sum = tuple[int, int, int]  # size in bytes, time of the last change in ns, CRC-32 of the content


def damaged_file(folder: Path) -> str:
    """Path in the folder of a file that is not as it was noted; "" if all are.

    A file that is gone is no damage, as torch makes it again. Neither is one that was written since: another run may
    have been at it, and torch appends to the sources of packages.
    """
    try:
        noted = _noted(folder)
    except ValueError:
        return NOTED
    for name, (size, changed, crc) in noted.items():
        path = folder / name
        try:
            if not _is_file(path):
                return name
            seen = path.stat()
            if seen.st_mtime_ns == changed and (seen.st_size != size or _crc(path) != crc):
                return name
        except FileNotFoundError:
            continue
        except OSError:
            return name
    return ""


def note(folder: Path) -> None:
    """Note the sums of all files in the folder. A file that is unchanged since they were last noted is not read again.

    Raises:
        OSError, StoreError: the folder cannot be read, or the sums cannot be written.
    """
    try:
        before = _noted(folder)
    except ValueError:
        before = {}
    after: dict[str, Sum] = {}
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            name, seen = path.relative_to(folder).as_posix(), path.stat()
            known = before.get(name)
            same = known is not None and known[:2] == (seen.st_size, seen.st_mtime_ns)
            after[name] = known if known is not None and same else (seen.st_size, seen.st_mtime_ns, _crc(path))
    if after != before:
        text = json.dumps(after)
        regular_file.write_whole(folder / NOTED, f"{zlib.crc32(text.encode()):08x} {text}".encode())


def _noted(folder: Path) -> dict[str, Sum]:
    """The sums by path; none if nothing was noted.

    Raises:
        ValueError: what was noted is damaged.
    """
    try:
        written, _, text = regular_file.read(folder / NOTED, LARGEST).decode().partition(" ")
    except FileNotFoundError:
        return {}
    except UsageError as problem:  # it is no regular file, or too large
        raise ValueError(str(problem)) from None
    if written != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError(f"{NOTED} is damaged")
    return {name: (size, changed, crc) for name, (size, changed, crc) in json.loads(text).items()}


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another run may remove it
            if path.suffix != LOCK and path.name != NOTED and _is_file(path):
                yield path


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc

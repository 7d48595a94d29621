"""Read the files of a tar archive in order, and raise an error for a truncated archive or a damaged header.

An archive is a sequence of 512-byte blocks: for each member a header with a checksum, then its data. Two blocks of
zeros end the archive. Python's `tarfile` mistakes a truncated or damaged header for the end and silently loses the
rest. Here an archive ends only at the two blocks, and only zeros may follow them.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from zoo.arguments import want_paths

END = bytes(2 * tarfile.BLOCKSIZE)
CHUNK = 1 << 16


def tar_files(archive: str | os.PathLike[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Return an iterator over the files of an uncompressed archive in order, which does not read ahead.

    The iterator skips folders. It reads data only on request and keeps no earlier file, so at most one file is in
    memory. A name that occurs twice gives two files.

    Args:
        archive: path of the archive, on a file system that supports seeking.

    Returns:
        An iterator over the name of each file and a function that reads its data. Call it before the next iteration.

    Raises:
        TypeError: `archive` is not a path.
        FileNotFoundError: there is no such file.
        ValueError: the file is compressed or not an archive, is truncated, has a damaged header, continues after
            its end, or contains a member that is neither file nor folder, such as a link. The message names that
            member or the one before it. A tar archive has no checksum for data and long names, so damage in them
            is not detected here.

    >>> import io, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     archive = Path(folder, "a.tar")
    ...     with tarfile.open(archive, "w") as tar:
    ...         header = tarfile.TarInfo("greeting")
    ...         header.size = 5
    ...         tar.addfile(header, io.BytesIO(b"hello"))
    ...     print([(name, read()) for name, read in tar_files(archive)])
    [('greeting', b'hello')]
    """
    want_paths("tar_files", archive=archive)
    return _files(Path(archive))


def _files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with archive.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        with _as_value_error(f"tar_files: {archive} does not start as an uncompressed tar archive does"):
            tar = tarfile.TarFile(fileobj=stream)
        end, place = 0, "before any member"
        while tar.offset:  # it is 0 if there is no member; then Python 3.10 does not take the call of `next`
            with _as_value_error(f"tar_files: {archive} is cut or damaged {place}"):
                member = tar.next()
            if member is None:
                break
            tar.members.clear()  # type: ignore[attr-defined] # TarFile would keep all members
            if not end < tar.offset <= size:
                raise ValueError(f"tar_files: {archive} is cut or damaged in member {member.name!r}")
            if member.isfile():
                yield member.name, partial(_read, tar, member, archive)
            elif not member.isdir():
                raise ValueError(f"tar_files: {archive}: member {member.name!r} is neither a file nor a folder")
            end, place = tar.offset, f"after member {member.name!r}"
        _check_end(stream, end, f"tar_files: {archive} is cut or damaged {place}")


@contextmanager
def _as_value_error(fault: str) -> Iterator[None]:
    """Turn the errors of tarfile and of reading into a ValueError that starts with `fault`."""
    try:
        yield
    except (tarfile.TarError, ValueError, EOFError, OSError) as problem:
        raise ValueError(f"{fault}: {problem}") from problem


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    with _as_value_error(f"tar_files: {archive} is cut or damaged in member {member.name!r}"):
        data = tar.extractfile(member)
        return data.read() if data else b""


def _check_end(stream: BinaryIO, end: int, fault: str) -> None:
    stream.seek(end)
    mark = stream.read(len(END))
    if mark != END:
        short = len(mark) < len(END) and not any(mark)
        raise ValueError(f"{fault}: " + ("no end-of-archive blocks" if short else "bad header"))
    while rest := stream.read(CHUNK):
        if any(rest):
            raise ValueError(f"{fault}: data behind the end-of-archive blocks")

"""The files of a tar archive one after another, with every cut and every damaged header told.

An archive is a chain of 512-byte blocks: for each member a header with a checksum, then its data; two blocks
of zeros end it. Python's `tarfile` takes a header that is cut or damaged for the end, and what follows is lost
without a word. Here an archive has ended only where its two blocks stand and nothing but zeros follows.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

END = bytes(2 * tarfile.BLOCKSIZE)
CHUNK = 1 << 16


def tar_files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Walk an uncompressed archive in its order, header by header, never ahead of the one asked for.

    Folders are passed over. Data is read only on request, and what was passed is forgotten, so memory holds
    one file at most. A name that occurs twice is two files.

    Args:
        archive: path of the archive, on a file system that can seek.

    Yields:
        Name and a function that reads the data, for each file; call it before asking for the next.

    Raises:
        ValueError: the archive is compressed or none at all, is cut, has a damaged header, goes on after its
            end, or holds what is neither file nor folder, such as a link. The message names the member in
            question or the one before it. Data and long names have no checksum in a tar archive: damage
            within them is for their reader to find.

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
    with archive.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        with _told(f"tar_files: {archive} does not start as an uncompressed tar archive does"):
            tar = tarfile.TarFile(fileobj=stream)
        end, place = 0, "before any member"
        while True:
            with _told(f"tar_files: {archive} is cut or damaged {place}"):
                member = tar.next()
            if member is None:
                break
            tar.members.clear()  # type: ignore[attr-defined] # TarFile would keep them all
            if not end < tar.offset <= size:
                raise ValueError(f"tar_files: {archive} is cut or damaged in member {member.name!r}")
            if member.isfile():
                yield member.name, partial(_read, tar, member, archive)
            elif not member.isdir():
                raise ValueError(f"tar_files: {archive}: member {member.name!r} is neither a file nor a folder")
            end, place = tar.offset, f"after member {member.name!r}"
        _check_end(stream, end, f"tar_files: {archive} is cut or damaged {place}")


@contextmanager
def _told(fault: str) -> Iterator[None]:
    """What goes wrong inside is a ValueError that says where."""
    try:
        yield
    except (tarfile.TarError, ValueError, EOFError, OSError) as problem:
        raise ValueError(f"{fault}: {problem}") from problem


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    with _told(f"tar_files: {archive} is cut or damaged in member {member.name!r}"):
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

"""Reads and writes the files of a run folder: regular files of bounded size, which hold records in JSON, one a line.

A run folder may come from somebody else. A link in it could lead out of it, a FIFO would be waited for without end,
and a huge file would fill the memory.

The first field of a record, "crc32", is the CRC-32 of the line without that field. So every flipped bit and every cut
is noticed. The sum finds damage; it does not prove who wrote the record. A document is one such line.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance import __version__
from conformance.errors import RecordError, StoreError, UsageError
from conformance.records.convert import from_json, to_json

# A FIFO or a device does not block, a link is not followed. Windows has neither of these flags, nor such files.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_IRREGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # how the system refuses a link, a FIFO and a folder

FORMAT = 6
LARGEST = 64 * 2**20  # bytes of a document
DEEPEST = 64  # levels of lists and objects
LONGEST_NUMBER = 100  # digits of a whole number; all of them fit a float


def read(path: Path, largest: int = LARGEST) -> bytes:
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
        except OSError as problem:
            raise UsageError(f"{path} cannot be read: {problem.strerror}") from None


def open_to_append(path: Path) -> int:
    """The descriptor of a file that is made if it does not exist.

    Raises:
        UsageError: it is no regular file, or cannot be opened.
    """
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def refuse_irregular(path: Path) -> None:
    """Refuse what is there but is no regular file; a file that is absent is right.

    Raises:
        UsageError: a link, a FIFO, a folder or a device stands at the path.
    """
    with contextlib.suppress(FileNotFoundError):
        os.close(_open(path, os.O_RDONLY))


def _open(path: Path, flags: int) -> int:
    try:
        file = os.open(path, flags | _CAREFUL | _BYTES, 0o666)
    except FileNotFoundError:
        raise
    except OSError as problem:
        why = "is no regular file" if problem.errno in _IRREGULAR else f"cannot be opened: {problem.strerror}"
        raise UsageError(f"{path} {why}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UsageError(f"{path} is no regular file")
    return file


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


def remove(path: Path) -> None:
    """Remove a folder with all its files, or whatever else stands at a path; a link is removed and not followed.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as problem:
        raise StoreError(f"{path} cannot be removed: {problem.strerror}") from None


# Records


def record_line(record: Mapping[str, Any]) -> bytes:
    r"""The line of a record, with its line break.

    >>> record_line({"selected": ["a"]})
    b'{"crc32":"4f54b69e","selected":["a"]}\n'
    """
    return with_sum(json.dumps(record, allow_nan=False, separators=(",", ":")).encode())


def with_sum(text: bytes) -> bytes:
    """The line of a record in JSON."""
    return b'{"crc32":"%08x",%s\n' % (zlib.crc32(text), text[1:])


_BEFORE = len(with_sum(b"{")) - 1  # bytes of a line before the fields of its record


def text_of(line: bytes) -> bytes:
    """The JSON text of a line without its sum.

    Raises:
        RecordError: the sum does not match.
    """
    text = b"{" + line[_BEFORE:-1]
    if line != with_sum(text):
        raise RecordError("its checksum does not match; it is damaged, or another version of conformance wrote it")
    return text


def parse(text: bytes) -> dict[str, Any]:
    """The record in a JSON text.

    Raises:
        RecordError: it is no JSON text of an object, or it is deep or has long numbers.
    """
    try:
        record = json.loads(text, parse_int=_whole_number, parse_constant=_whole_number)
    except RecordError:
        raise
    except ValueError as problem:
        raise RecordError(f"it is no JSON: {problem}") from None
    except RecursionError:
        raise RecordError(f"it has more than {DEEPEST} levels") from None
    if not isinstance(record, dict):
        raise RecordError(f"want an object, got {type(record).__name__}")
    level: list[Any] = [record]
    for _ in range(DEEPEST):
        level = [item for v in level for item in (v.values() if type(v) is dict else v if type(v) is list else ())]
    if level:
        raise RecordError(f"it has more than {DEEPEST} levels")
    return record


def _whole_number(text: str) -> int:
    """A whole number, or one of the words that Python's JSON takes for numbers."""
    if len(text) > LONGEST_NUMBER or not text.lstrip("-").isdigit():
        raise RecordError(f"it has {text:.20}, which is no whole number of at most {LONGEST_NUMBER} digits")
    return int(text)


def write_document(path: Path, name: str, record: Any) -> None:
    """Write a document whole, or not at all: a record in the field of that name.

    Raises:
        StoreError: the file cannot be written.
    """
    write_whole(path, record_line({"format": FORMAT, "version": __version__, name: to_json(record)}))


def decode(path: Path, data: bytes, name: str, kind: Any) -> Any:
    """The record in a document.

    Args:
        path: the file, for messages.
        data: its content.
        name: the field that holds the record.
        kind: the type of the record.

    Raises:
        UsageError: it is damaged, has another format or holds something else; the message names the file.
    """
    try:
        return from_json(kind, _field(parse(text_of(data)), name))
    except RecordError as problem:
        raise UsageError(f"{path}: {problem}") from None


def _field(fields: dict[str, Any], name: str) -> Any:
    written, version = fields.pop("format", None), fields.pop("version", None)
    if written != FORMAT:
        ours = f"this is conformance {__version__} for format {FORMAT}"
        raise RecordError(f"it has format {written!r:.20} of conformance {version!r:.40}; {ours}")
    if set(fields) != {name}:
        raise RecordError(f"want the field {name!r}, got {sorted(fields)!r:.80}")
    return fields[name]

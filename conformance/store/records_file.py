r"""Writes and checks records in JSON, one a line, each with a sum of its own; a document is one such line.

The first field of a record, "crc32", is the CRC-32 of the line without that field. So every flipped bit and every cut
is noticed. The sum finds damage; it does not prove who wrote the record.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance import __version__
from conformance.errors import RecordError, UsageError
from conformance.records.convert import from_json, to_json
from conformance.store import regular_file

FORMAT = 6
LARGEST = 64 * 2**20  # bytes of a document
DEEPEST = 64  # levels of lists and objects
LONGEST_NUMBER = 100  # digits of a whole number; all of them fit a float


def line(record: Mapping[str, Any]) -> bytes:
    r"""The line of a record, with its line break.

    >>> line({"selected": ["a"]})
    b'{"crc32":"4f54b69e","selected":["a"]}\n'
    """
    return with_sum(json.dumps(record, allow_nan=False, separators=(",", ":")).encode())


def with_sum(text: bytes) -> bytes:
    """The line of a record in JSON."""
    return b'{"crc32":"%08x",%s\n' % (zlib.crc32(text), text[1:])


_BEFORE = len(with_sum(b"{")) - 1  # bytes of a line before the fields of its record


def text_of(data: bytes) -> bytes:
    """The JSON text of a line without its sum.

    Raises:
        RecordError: the sum does not match.
    """
    text = b"{" + data[_BEFORE:-1]
    if data != with_sum(text):
        raise RecordError("its checksum does not match; it is damaged, or another version of conformance wrote it")
    return text


def parse(text: bytes) -> dict[str, Any]:
    """The record in a JSON text.

    Raises:
        RecordError: it is no JSON text of an object, or it is deep, or has long numbers or a key twice.
    """
    try:
        record = json.loads(
            text.decode("ascii"), object_pairs_hook=_object, parse_int=_whole_number, parse_constant=_whole_number
        )
    except RecursionError:
        raise RecordError(f"it has more than {DEEPEST} levels") from None
    except ValueError as problem:
        raise problem if isinstance(problem, RecordError) else RecordError(f"it is no JSON: {problem}") from None
    if not isinstance(record, dict):
        raise RecordError(f"want an object, got {type(record).__name__}")
    _refuse_depth(record)
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RecordError(f"it has the key {ascii(key)[:80]} twice")
        found[key] = value
    return found


def _whole_number(text: str) -> int:
    """A whole number, or one of the words that Python's JSON takes for numbers."""
    if len(text) > LONGEST_NUMBER or not text.lstrip("-").isdigit():
        raise RecordError(f"it has {text:.20}, which is no whole number of at most {LONGEST_NUMBER} digits")
    return int(text)


def _refuse_depth(record: Any) -> None:
    level = [record]
    for _ in range(DEEPEST):
        level = [item for v in level for item in (v.values() if type(v) is dict else v if type(v) is list else ())]
        if not level:
            return
    raise RecordError(f"it has more than {DEEPEST} levels")


def write(path: Path, name: str, record: Any) -> None:
    """Write a document whole, or not at all: a record in the field of that name.

    Raises:
        StoreError: the file cannot be written.
    """
    regular_file.write_whole(path, line({"format": FORMAT, "version": __version__, name: to_json(record)}))


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
    found, version = fields.pop("format", None), fields.pop("version", None)
    if type(found) is not int or found != FORMAT:
        ours = f"this is conformance {__version__} for format {FORMAT}"
        raise RecordError(f"it has format {found!r:.20} of conformance {version!r:.40}; {ours}")
    if set(fields) != {name}:
        raise RecordError(f"want the field {name!r}, got {sorted(fields)!r:.80}")
    return fields[name]

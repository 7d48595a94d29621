r"""The form of what a run folder holds: JSON documents with a sum of their own, and lines that are chained.

A sealed document is a JSON object whose last field, "sha256", is the sum of all bytes before it. A chained line reads
"crc32 json"; its sum continues that of the line before it, and the first one that of the plan. So a flipped bit, a cut,
a dropped, doubled or moved line and another plan are noticed. The sums find damage; they do not prove who wrote it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

from conformance.errors import RecordError

DEEPEST = 64  # levels of lists and objects
LONGEST_NUMBER = 100  # digits of a whole number; all of them fit a float

_END = ',\n "sha256": "{}"\n}}\n'
_END_BYTES = len(_END.format("0" * 64))


def seal(fields: Mapping[str, Any]) -> bytes:
    r"""A document with its sum.

    >>> print(seal({"format": 4}).decode()[:27])
    {
     "format": 4,
     "sha256":
    """
    head = json.dumps(fields, indent=1, allow_nan=False).removesuffix("\n}").encode()
    return head + _end(head)


def unseal(data: bytes) -> dict[str, Any]:
    """The fields of a sealed document, without its sum.

    Raises:
        RecordError: the document is damaged, or is none.
    """
    head, end = data[:-_END_BYTES], data[-_END_BYTES:]
    if end != _end(head):
        raise RecordError("it is damaged or no sealed document: its sum does not match")
    fields = parse(head + b"\n}")
    if not isinstance(fields, dict):
        raise RecordError(f"want an object, got {type(fields).__name__}")
    return fields


def _end(head: bytes) -> bytes:
    return _END.format(hashlib.sha256(head).hexdigest()).encode()


def line(record: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """A chained line, and its sum.

    Args:
        record: the content of the line.
        before: the sum of the line before it.
    """
    return chained(json.dumps(record, allow_nan=False, separators=(",", ":")).encode(), before)


def chained(text: bytes, before: int) -> tuple[bytes, int]:
    """A chained line with that JSON text, and its sum."""
    total = zlib.crc32(text, before)
    return b"%08x %s\n" % (total, text), total


def unchain(data: bytes, before: int) -> tuple[dict[str, Any], int]:
    """The record of a chained line, and its sum.

    Args:
        data: the line with its line break.
        before: the sum of the line before it.

    Raises:
        RecordError: its sum does not match, or it is no record.
    """
    text, total = checked(data, before)
    return parse_record(text), total


def checked(data: bytes, before: int) -> tuple[bytes, int]:
    """The JSON text of a chained line, and its sum; see `unchain`.

    Raises:
        RecordError: its sum does not match.
    """
    text = data[9:-1]
    total = zlib.crc32(text, before)
    if data != b"%08x %s\n" % (total, text):
        raise RecordError("its checksum does not match; the run is damaged")
    return text, total


def parse_record(text: bytes) -> dict[str, Any]:
    """The record in a JSON text; see `parse`.

    Raises:
        RecordError: it is no record.
    """
    record = parse(text)
    if not isinstance(record, dict):
        raise RecordError(f"want an object, got {type(record).__name__}")
    return record


def parse(text: bytes) -> Any:
    """The value of a JSON text, within the bounds of this file.

    Raises:
        RecordError: it is no JSON text, or it is out of bounds: deep, with long numbers, or with a key twice.
    """
    try:
        value = json.loads(
            text.decode("ascii"), object_pairs_hook=_object, parse_int=_integer, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise RecordError(f"it has more than {DEEPEST} levels") from None
    except ValueError as problem:
        raise problem if isinstance(problem, RecordError) else RecordError(f"it is no JSON: {problem}") from None
    _refuse_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RecordError(f"it has the key {ascii(twice)[:80]} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise RecordError(f"it has a whole number of {len(text)} digits")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise RecordError(f"it has {name}, which JSON lacks")


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item for v in level if isinstance(v, (dict, list)) for item in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return
    raise RecordError(f"it has more than {DEEPEST} levels")

"""Converts every record to JSON and back, by the types of its fields. Nothing else reads or writes JSON of records.

A field that equals its default is left out. Infinities and NaN become text, which JSON has no number for. A value of a
union of records carries the name of its record under "record".
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from conformance.errors import RecordError

NAME = "record"


@dataclasses.dataclass(frozen=True)
class Digits:
    """How many significant digits of a number are kept."""

    count: int


Rounded = Annotated[float, Digits(4)]


def to_json(value: Any, hint: Any = None) -> Any:
    """The JSON form of a record, or of a value of a type that a record may hold.

    Args:
        value: a record, number, text, None, or tuples and dictionaries of these.
        hint: its declared type; the value's own type if None.

    >>> from conformance.records.cell import Cell
    >>> to_json(Cell("merge", "eager", "fp32", "cpu"))
    {'model': 'merge', 'mode': 'eager', 'precision': 'fp32', 'device': 'cpu'}
    """
    declared: Any = type(value) if hint is None else hint
    hint, digits, tagged = _resolved(declared)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            name: to_json(field, declared)
            for name, declared, default in _fields(type(value))
            if not _is_default(field := getattr(value, name), default)
        }
        return {NAME: type(value).__name__, **fields} if tagged else fields
    if isinstance(value, float):
        return _number(value, digits)
    if isinstance(value, Mapping):
        inner = get_args(hint)[1] if len(get_args(hint)) > 1 else None
        return {key: to_json(item, inner) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        inners = _item_types(hint, len(value))
        return [to_json(item, inner) for item, inner in zip(value, inners, strict=True)]
    return value


def from_json(hint: Any, data: Any) -> Any:
    """The value of a declared type from its JSON form.

    Raises:
        RecordError: the data is not of that type; the message names record and field.

    >>> from conformance.records.cell import Cell
    >>> from_json(Cell, {"model": "merge", "mode": "eager", "precision": "fp32", "device": "cpu"}).id
    'merge[eager-fp32-cpu]'
    >>> from_json(Cell, {"model": "merge"})
    Traceback (most recent call last):
    conformance.errors.RecordError: Cell has no mode
    """
    wanted, _, _ = _resolved(hint)
    if get_origin(wanted) in (Union, types.UnionType):
        return _from_union(get_args(wanted), data)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return _record(wanted, data)
    origin = get_origin(wanted) or wanted
    if origin is tuple:
        _check(isinstance(data, list), "a list", data)
        return tuple(from_json(inner, item) for item, inner in zip(data, _item_types(wanted, len(data)), strict=True))
    if origin in (dict, Mapping):
        _check(isinstance(data, dict), "an object", data)
        inner = get_args(wanted)[1] if get_args(wanted) else Any
        return {key: from_json(inner, item) for key, item in data.items()}
    return _plain(wanted, data)


def _plain(wanted: Any, data: Any) -> Any:
    if wanted is Any:
        return data
    if wanted is float:
        if isinstance(data, str) and data in ("inf", "-inf", "nan"):
            return float(data)
        _check(isinstance(data, (int, float)) and not isinstance(data, bool), "a number", data)
        return float(data)
    is_one = isinstance(data, wanted) and not (wanted is int and isinstance(data, bool))
    _check(is_one, wanted.__name__, data)
    return data


def _record(cls: type, data: Any) -> Any:
    _check(isinstance(data, dict), cls.__name__, data)
    fields = {name: (declared, default) for name, declared, default in _fields(cls)}
    for key in data:
        if key not in fields and key != NAME:
            raise RecordError(f"{cls.__name__} has an unknown field {key!r}")
    values = {}
    for name, (declared, default) in fields.items():
        if name in data:
            try:
                values[name] = from_json(declared, data[name])
            except RecordError as problem:
                raise RecordError(f"{cls.__name__}.{name}: {problem}") from None
        elif default is MISSING:
            raise RecordError(f"{cls.__name__} has no {name}")
    return cls(**values)


def _from_union(members: tuple[Any, ...], data: Any) -> Any:
    """The value of an optional type, or of a union of records, which carry their names."""
    if data is None and type(None) in members:
        return None
    present = [_resolved(member)[0] for member in members if member is not type(None)]
    if len(present) == 1:
        return from_json(present[0], data)
    records = {member.__name__: member for member in present}
    name = data.get(NAME) if isinstance(data, dict) else None
    if name not in records:
        raise RecordError(f"want one of {', '.join(records)}, got {name or type(data).__name__}")
    return _record(records[name], data)


def _check(holds: bool, wanted: str, data: Any) -> None:  # noqa: FBT001 -- what is checked
    if not holds:
        raise RecordError(f"want {wanted}, got {type(data).__name__}")


@cache
def _fields(cls: type) -> list[tuple[str, Any, Any]]:
    """Name, declared type and default of every field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append((field.name, hints[field.name], default))
    return found


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)


@cache
def _resolved(hint: Any) -> tuple[Any, int, bool]:
    """The bare type, the digits of its numbers (0: all), and whether its records carry their name."""
    digits = 0
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        digits = next((extra.count for extra in extras if isinstance(extra, Digits)), 0)
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    digits = digits or max((_resolved(member)[1] for member in members), default=0)
    return hint, digits, sum(member is not type(None) for member in members) > 1


def _item_types(hint: Any, count: int) -> list[Any]:
    inner = get_args(hint)
    if not inner:
        return [None] * count
    if len(inner) == 2 and inner[1] is Ellipsis:  # noqa: PLR2004 -- tuple[T, ...]
        return [inner[0]] * count
    if len(inner) != count:
        raise RecordError(f"want {len(inner)} items, got {count}")
    return list(inner)


def _number(value: float, digits: int) -> float | str:
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.{digits}g}") if digits else value

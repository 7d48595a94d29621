"""Converts every record to JSON and back, by the types of its fields. Nothing else reads or writes JSON of records.

A field that equals its default is left out. Infinities and NaN become text, because JSON has no numbers for them. A
value of a union of records carries the name of its record under "record".
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, runtime_checkable

from conformance.errors import RecordError

NAME = "record"
NOT_FINITE = ("inf", "-inf", "nan")
TOO_LARGE = 1024  # bits of a whole number that is no float

Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Digits:
    """How many significant digits of a number are kept; an annotation of a field's type."""

    count: int


Rounded = Annotated[float, Digits(4)]


def to_json(value: Any, hint: Any = None) -> Any:
    """The JSON form of a record, or of a value of a type that a record may hold.

    Args:
        value: a record, number, text, None, or tuples and dictionaries of these.
        hint: its declared type; None: the type of the value.

    >>> from conformance.records.cell import Cell
    >>> to_json(Cell("merge", "eager", "fp32", "cpu"))
    {'model': 'merge', 'mode': 'eager', 'precision': 'fp32', 'device': 'cpu'}
    """
    declared: Any = type(value) if hint is None else hint
    return _encoder(declared)(value)


def from_json(hint: Any, data: Any) -> Any:
    """The value of a declared type from its JSON form.

    Args:
        hint: the declared type.
        data: what `to_json` returned for a value of that type.

    Raises:
        RecordError: the data is not of that type; the message names record and field.

    >>> from conformance.records.cell import Cell
    >>> from_json(Cell, {"model": "merge", "mode": "eager", "precision": "fp32", "device": "cpu"}).id
    'merge[eager-fp32-cpu]'
    >>> from_json(Cell, {"model": "merge"})
    Traceback (most recent call last):
    conformance.errors.RecordError: Cell has no mode
    """
    return _decoder(hint)(data)


@cache
def _encoder(hint: Any) -> Convert:  # noqa: PLR0911 -- one for each kind of type
    """The function that turns a value of a declared type into JSON."""
    bare, digits, members = _parts(hint)
    if len(members) > 1:
        return _union_encoder(members)
    if members:
        inner = _encoder(members[0])
        return lambda value: None if value is None else inner(value)
    if _is_record(bare):
        fields = [(name, _encoder(declared), default) for name, declared, default in _fields(bare)]
        return lambda record: _encode(record, fields)
    if bare is float:
        return lambda value: _number(value, digits)
    origin, inside = get_origin(bare) or bare, get_args(bare)
    if origin in (dict, Mapping):
        item = _encoder(inside[1]) if inside else _any
        return lambda mapping: {key: item(value) for key, value in mapping.items()}
    if origin in (tuple, list) and len(inside) == 2 and inside[1] is Ellipsis:  # noqa: PLR2004 -- tuple[T, ...]
        item = _encoder(inside[0])
        return lambda values: [item(value) for value in values]
    if origin is tuple and inside:
        items = [_encoder(part) for part in inside]
        return lambda values: [item(value) for item, value in zip(items, values, strict=True)]
    return _any


def _any(value: Any) -> Any:
    """The JSON form of a value of an undeclared type."""
    return to_json(value) if _is_record(type(value)) else value


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _union_encoder(members: tuple[type, ...]) -> Convert:
    encoders = {member: _encoder(member) for member in members}
    return lambda record: {NAME: type(record).__name__, **encoders[type(record)](record)}


def _encode(record: Any, fields: list[tuple[str, Convert, Any]]) -> dict[str, Any]:
    values = ((name, encode, default, getattr(record, name)) for name, encode, default in fields)
    return {name: encode(value) for name, encode, default, value in values if not _is_default(value, default)}


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)


def _number(value: float, digits: int) -> float | str:
    kept = float(f"{value:.{digits}g}") if digits and isinstance(value, float) else value
    return kept if math.isfinite(kept) else str(kept)


@cache
def _decoder(hint: Any) -> Convert:  # noqa: PLR0911 -- one for each kind of type
    """The function that makes a value of a declared type from JSON."""
    limits = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Limit)]
    if limits:
        return _with_limits(_decoder(get_args(hint)[0]), limits)
    bare, _, members = _parts(hint)
    if len(members) > 1:
        return _union_decoder(members)
    if members:
        inner = _decoder(members[0])
        return lambda data: None if data is None else inner(data)
    if _is_record(bare):
        return _record_decoder(bare)
    if bare is float:
        return _float
    if bare is Any:
        return lambda data: data
    origin, inside = get_origin(bare) or bare, get_args(bare)
    if origin in (dict, Mapping):
        item = _decoder(inside[1] if inside else Any)
        return lambda data: {key: item(value) for key, value in _of(dict, data).items()}
    if origin is tuple and len(inside) == 2 and inside[1] is Ellipsis:  # noqa: PLR2004 -- tuple[T, ...]
        item = _decoder(inside[0])
        return lambda data: tuple([item(value) for value in _of(list, data)])
    if origin is tuple:
        return _tuple_decoder([_decoder(part) for part in inside])
    return lambda data: _of(bare, data)


def _with_limits(inner: Convert, limits: list[Limit]) -> Convert:
    def decode(data: Any) -> Any:
        value = inner(data)
        for limit in limits:
            limit.check(value)
        return value

    return decode


def _record_decoder(cls: type) -> Convert:
    fields = [(name, _decoder(declared), default) for name, declared, default in _fields(cls)]
    names = {NAME, *(name for name, _, _ in fields)}

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise RecordError(f"want {cls.__name__}, got {type(data).__name__}")
        if data.get(NAME, cls.__name__) != cls.__name__:
            raise RecordError(f"want {cls.__name__}, got {data[NAME]}")
        if not names.issuperset(data):
            raise RecordError(f"{cls.__name__} has an unknown field {next(key for key in data if key not in names)!r}")
        values = {}
        for name, convert, default in fields:
            if name in data:
                try:
                    values[name] = convert(data[name])
                except RecordError as problem:
                    raise RecordError(f"{cls.__name__}.{name}: {problem}") from None
            elif default is MISSING:
                raise RecordError(f"{cls.__name__} has no {name}")
        try:
            return cls(**values)
        except ValueError as problem:
            raise RecordError(f"{cls.__name__}: {problem}") from None

    return decode


def _union_decoder(members: tuple[type, ...]) -> Convert:
    decoders = {member.__name__: _decoder(member) for member in members}

    def decode(data: Any) -> Any:
        name = data.get(NAME) if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in decoders:
            raise RecordError(f"want one of {', '.join(decoders)}, got {name or type(data).__name__}")
        return decoders[name](data)

    return decode


def _tuple_decoder(items: list[Convert]) -> Convert:
    def decode(data: Any) -> tuple[Any, ...]:
        if len(_of(list, data)) != len(items):
            raise RecordError(f"want {len(items)} items, got {len(data)}")
        return tuple(item(value) for item, value in zip(items, data, strict=True))

    return decode


def _float(data: Any) -> float:
    if type(data) is float or (type(data) is int and data.bit_length() < TOO_LARGE) or data in NOT_FINITE:
        return float(data)
    raise RecordError(f"want a number, got {type(data).__name__}")


def _of(wanted: type, data: Any) -> Any:
    """The data, if it is of that type; a boolean is not a number."""
    if type(data) is wanted:
        return data
    raise RecordError(f"want {wanted.__name__}, got {type(data).__name__}")


@cache
def _fields(cls: Any) -> list[tuple[str, Any, Any]]:
    """Name, declared type and default of every field."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append((field.name, hints[field.name], default))
    return found


def _parts(hint: Any) -> tuple[Any, int, tuple[Any, ...]]:
    """The bare type, the digits of its numbers (0: all), and the members of an optional type or union but None."""
    digits = 0
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        digits = next((extra.count for extra in extras if isinstance(extra, Digits)), 0)
    is_union = get_origin(hint) in (Union, types.UnionType)
    return hint, digits, tuple(member for member in get_args(hint) if member is not type(None)) if is_union else ()


# Defines what a field of a record may hold beside its type: annotations that the decoder checks.


@runtime_checkable
class Limit(Protocol):
    """An annotation of a field's type."""

    def check(self, value: Any) -> None:
        """Refuse a value that the field must not hold.

        Raises:
            RecordError: the value is outside the limit; the message says what was wanted.
        """


@dataclass(frozen=True)
class OneOf:
    """A word of a table."""

    words: tuple[str, ...]

    def check(self, value: Any) -> None:
        """Refuse a word that is not in the table."""
        if value not in self.words:
            raise RecordError(f"want one of {', '.join(map(repr, self.words))}, got {_cut(value)}")


@dataclass(frozen=True)
class Matching:
    """A name of a plain form, which can stand in a table, in a message and in the name of a file."""

    pattern: str
    longest: int

    def check(self, value: Any) -> None:
        """Refuse a text of another form."""
        if len(value) > self.longest or not re.fullmatch(self.pattern, value, re.ASCII):
            raise RecordError(f"want a name of letters, digits and '_', got {_cut(value)}")


@dataclass(frozen=True)
class AboveZero:
    """A finite number above zero."""

    def check(self, value: Any) -> None:
        """Refuse zero, negative numbers, infinity and NaN."""
        if not (value > 0 and math.isfinite(value)):
            raise RecordError(f"want a finite number above 0, got {value}")


Name = Annotated[str, Matching(r"[\w.-]+(@\w+)?", 200)]


def _cut(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"  # noqa: PLR2004 -- a display length

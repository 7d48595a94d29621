"""Converts every record to JSON and back, by the types of its fields. Nothing else reads or writes JSON of records.

A field that equals its default is left out. Infinities and NaN become text, because JSON has no numbers for them. A
value of a union of records carries the name of its record under "record".
"""

import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from conformance.errors import RecordError

NAME = "record"
NOT_FINITE = ("inf", "-inf", "nan")
TOO_LARGE = 1024  # bits of a whole number that is no float

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Digits:
    """How many significant digits of a number are kept; an annotation of a field's type."""

    count: int


Rounded = Annotated[float, Digits(4)]


def to_json(value: Any, hint: Any = None) -> Any:
    """The JSON form of a record, or of a value of a type that a record may hold: numbers, text, None and containers.

    It is declared to be of type `hint`; None: the type of the value.

    >>> from conformance.records.cell import Cell
    >>> to_json(Cell("merge", "eager", "fp32", "cpu"))
    {'model': 'merge', 'mode': 'eager', 'precision': 'fp32', 'device': 'cpu'}
    """
    declared: Any = type(value) if hint is None else hint
    return _codec(declared)[0](value)


def from_json(hint: Any, data: Any) -> Any:
    """The value of a declared type from its JSON form, as `to_json` returned it.

    Raises RecordError if the data is not of that type; the message names record and field.

    >>> from conformance.records.cell import Cell
    >>> from_json(Cell, {"model": "merge", "mode": "eager", "precision": "fp32", "device": "cpu"}).id
    'merge[eager-fp32-cpu]'
    >>> from_json(Cell, {"model": "merge"})
    Traceback (most recent call last):
    conformance.errors.RecordError: Cell has no mode
    """
    return _codec(hint)[1](data)


Codec = tuple[Convert, Convert]  # one to JSON, and one back


@cache
def _codec(hint: Any) -> Codec:  # noqa: PLR0911 -- one for each kind of type
    """How a value of a declared type becomes JSON, and how it is made of it again."""
    if get_origin(hint) is Annotated:
        return _annotated_codec(*get_args(hint))
    origin, inside = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(tuple(member for member in inside if member is not types.NoneType))
    if is_record(origin):
        return _record(origin)
    if origin is float:
        return _number, _float
    if origin is Any:
        return _any, lambda data: data
    if origin in (dict, Mapping):
        encode, decode = _codec(inside[1] if inside else Any)
        return (
            lambda mapping: {key: encode(value) for key, value in mapping.items()},
            lambda data: {key: decode(value) for key, value in _of(dict, data).items()},
        )
    if origin is tuple and inside[1:] == (Ellipsis,):
        encode, decode = _codec(inside[0])
        return (
            lambda values: [encode(value) for value in values],
            lambda data: tuple([decode(value) for value in _of(list, data)]),
        )
    if origin is tuple and inside:
        return _items([_codec(part) for part in inside])
    return _any, lambda data: _of(origin, data)


def _any(value: Any) -> Any:
    """The JSON form of a value of an undeclared type."""
    return to_json(value) if is_record(type(value)) else value


def is_record(kind: Any) -> bool:
    """Whether a type is that of a record."""
    return isinstance(kind, type) and is_dataclass(kind)


def _annotated_codec(bare: Any, *extras: Any) -> Codec:
    """A type whose numbers are rounded, or whose values are limited."""
    encode, decode = _codec(bare)
    limits = [extra for extra in extras if isinstance(extra, Limit)]
    digits = [extra.count for extra in extras if isinstance(extra, Digits)]

    def decode_limited(data: Any) -> Any:
        value = decode(data)
        for limit in limits:
            limit.check(value)
        return value

    return (lambda value: _number(value, *digits)) if digits else encode, decode_limited if limits else decode


def _union(members: tuple[Any, ...]) -> Codec:
    """An optional type, or a union of records."""
    if len(members) == 1:
        encode, decode = _codec(members[0])
        return (
            lambda value: None if value is None else encode(value),
            lambda data: None if data is None else decode(data),
        )
    codecs = {member.__name__: _codec(member) for member in members}

    def encode_named(value: Any) -> Any:
        name = type(value).__name__
        return {NAME: name, **codecs[name][0](value)}

    def decode_named(data: Any) -> Any:
        name = data.get(NAME) if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in codecs:
            raise RecordError(f"want one of {', '.join(codecs)}, got {name or type(data).__name__}")
        return codecs[name][1](data)

    return encode_named, decode_named


def _record(cls: Any) -> Codec:
    hints = get_type_hints(cls, include_extras=True)
    parts = [(field.name, *_codec(hints[field.name]), default_of(field)) for field in fields(cls)]
    known = {NAME, *(name for name, *_ in parts)}

    def encode(record: Any) -> dict[str, Any]:
        values = ((name, write, default, getattr(record, name)) for name, write, _, default in parts)
        return {name: write(value) for name, write, default, value in values if not _is_default(value, default)}

    def decode(data: Any) -> Any:
        _check_names(cls, known, data)
        values = {}
        for name, _, read, default in parts:
            if name in data:
                try:
                    values[name] = read(data[name])
                except RecordError as problem:
                    raise RecordError(f"{cls.__name__}.{name}: {problem}") from None
            elif default is MISSING:
                raise RecordError(f"{cls.__name__} has no {name}")
        try:
            return cls(**values)
        except ValueError as problem:
            raise RecordError(f"{cls.__name__}: {problem}") from None

    return encode, decode


def _check_names(cls: Any, known: set[str], data: Any) -> None:
    """Refuse what is no record, another one, or has a field that is not known."""
    if not isinstance(data, dict):
        raise RecordError(f"want {cls.__name__}, got {type(data).__name__}")
    if data.get(NAME, cls.__name__) != cls.__name__:
        raise RecordError(f"want {cls.__name__}, got {data[NAME]}")
    if not known.issuperset(data):
        raise RecordError(f"{cls.__name__} has an unknown field {next(key for key in data if key not in known)!r}")


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and type(value) is type(default) and bool(value == default)


def _items(codecs: list[Codec]) -> Codec:
    """A tuple each of whose items has a type of its own."""

    def decode(data: Any) -> tuple[Any, ...]:
        if len(_of(list, data)) != len(codecs):
            raise RecordError(f"want {len(codecs)} items, got {len(data)}")
        return tuple(decode(item) for (_, decode), item in zip(codecs, data, strict=True))

    return lambda values: [encode(value) for (encode, _), value in zip(codecs, values, strict=True)], decode


def _number(value: float, digits: int = 0) -> float | str:
    kept = float(f"{value:.{digits}g}") if digits and isinstance(value, float) else value
    return kept if math.isfinite(kept) else str(kept)


def _float(data: Any) -> float:
    if type(data) is float or (type(data) is int and data.bit_length() < TOO_LARGE) or data in NOT_FINITE:
        return float(data)
    raise RecordError(f"want a number, got {type(data).__name__}")


def _of(wanted: type, data: Any) -> Any:
    """The data, if it is of that type; a boolean is not a number."""
    if type(data) is wanted:
        return data
    raise RecordError(f"want {wanted.__name__}, got {type(data).__name__}")


def default_of(field: Field[Any]) -> Any:
    """The default of a field of a record; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


# What a field of a record may hold beside its type: an annotation that is checked when JSON is read.


@dataclass(frozen=True)
class Limit:
    """An annotation of a field's type: what it may hold, in words and as JSON Schema, and whether it holds a value."""

    wanted: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any] = field(hash=False)

    def check(self, value: Any) -> None:
        """Refuse a value that the field must not hold, by a RecordError that says what was wanted."""
        if not self.holds(value):
            shown = ascii(value)
            cut = shown if len(shown) <= 80 else f"{shown[:80]}…"  # noqa: PLR2004 -- a display length
            raise RecordError(f"want {self.wanted}, got {cut}")


def one_of(words: Iterable[str]) -> Limit:
    """A word of a table."""
    known = tuple(words)
    return Limit(f"one of {', '.join(map(repr, known))}", known.__contains__, {"enum": [*known]})


def _is_name(text: str) -> bool:
    """Whether a text can stand in a table, in a message and in the name of a file."""
    return len(text) <= LONGEST_NAME and re.fullmatch(FORM_OF_NAME, text) is not None


LONGEST_NAME, FORM_OF_NAME = 200, r"[A-Za-z0-9_.-]+(@[A-Za-z0-9_=,]+)?"
OF_NAME = {"pattern": f"^{FORM_OF_NAME}$", "maxLength": LONGEST_NAME}
Name = Annotated[str, Limit("a name of letters, digits and '_'", _is_name, OF_NAME)]
OF_ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}
ABOVE_ZERO = Limit("a finite number above 0", lambda number: 0 < number < math.inf, OF_ABOVE_ZERO)

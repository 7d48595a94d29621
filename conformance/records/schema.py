"""Describes records as a JSON Schema: what `convert.to_json` writes, by the same types of their fields."""

import inspect
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from conformance.records.convert import NAME, NOT_FINITE, Limit, default_of, is_record, to_json

Schema = dict[str, Any]

NUMBER = "number"  # the definition of a number that need not be finite
PLAIN = {str: "string", int: "integer", bool: "boolean"}


def definitions(*kinds: type) -> dict[str, Schema]:
    """The "$defs" of a JSON Schema of draft 2020-12: these records, and all records in them, by name.

    What a record checks of several fields together, `convert.from_json` alone refuses.

    >>> from conformance.records.plan import Shard
    >>> definitions(Shard)["Shard"]["properties"]["index"]
    {'type': 'integer', 'exclusiveMinimum': 0}
    """
    found: dict[str, Schema] = {NUMBER: {"anyOf": [{"type": "number"}, {"enum": [*NOT_FINITE]}]}}
    for kind in kinds:
        _schema(kind, found)
    return dict(sorted(found.items()))


def reference(name: str) -> Schema:
    """The schema that is the definition of that name."""
    return {"$ref": f"#/$defs/{name}"}


def _schema(hint: Any, found: dict[str, Schema]) -> Schema:  # noqa: PLR0911 -- one for each kind of type
    """The schema of a declared type; `found` takes the definitions of the records in it."""
    origin, inside = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        limits = [extra.schema for extra in inside[1:] if isinstance(extra, Limit)]
        parts = [*limits, _schema(inside[0], found)]  # the type last: a limit of whole numbers says number
        return {key: value for part in parts for key, value in part.items()}
    if origin in (Union, types.UnionType):
        return _union([member for member in inside if member is not types.NoneType], found)
    if is_record(origin):
        if origin.__name__ not in found:
            found[origin.__name__] = _record(origin, found)
        return reference(origin.__name__)
    if origin is float:
        return reference(NUMBER)
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(inside[1], found)}
    if origin is tuple and inside[1:] == (Ellipsis,):
        return {"type": "array", "items": _schema(inside[0], found)}
    if origin is tuple:
        items = [_schema(part, found) for part in inside]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return {} if origin is Any else {"type": PLAIN[origin]}


def _union(members: list[Any], found: dict[str, Schema]) -> Schema:
    """An optional type, or a union of records, where the name of the record says which it is."""
    if len(members) == 1:
        return {"anyOf": [_schema(members[0], found), {"type": "null"}]}
    return {"anyOf": [{**_schema(member, found), "required": [NAME]} for member in members]}


def _record(cls: Any, found: dict[str, Schema]) -> Schema:
    hints = get_type_hints(cls, include_extras=True)
    properties, required = {NAME: {"const": cls.__name__}}, []
    for field in fields(cls):
        schema = _schema(hints[field.name], found)
        default = default_of(field)
        if default is MISSING:
            required.append(field.name)
        else:
            schema = {**schema, "default": to_json(default)}
        properties[field.name] = schema
    return {
        "description": inspect.getdoc(cls),
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }

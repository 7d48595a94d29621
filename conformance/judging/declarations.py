"""Reads and writes the divergences that people declare outside the code: a TOML file with a list for each model."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.errors import UsageError, suggestion
from conformance.judging import toml_file
from conformance.records.plan import Declared

FIELDS = {field.name: field.type for field in dataclasses.fields(Declared) if field.name != "model"}
BARE = re.compile(r"[A-Za-z0-9_-]+")
HEAD = """\
# Divergences of models that are known and accepted. Each needs a reason that a reader can check.
# `conformance run … --expect THIS_FILE` applies them; one that is no longer true makes its cell red.
"""


def read(path: Path) -> tuple[Declared, ...]:
    """The divergences in a file.

    Raises:
        UsageError: there is no such file, it is no TOML, a field is unknown or of another type, or a reason is missing.
    """
    try:
        tables = toml_file.read(path)
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    return tuple(found for model, entries in tables.items() for found in _of_model(path, model, entries))


def _of_model(path: Path, model: str, entries: Any) -> Iterator[Declared]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: {model} must be a list of tables; write [[{_key(model)}]] above each")
    for number, entry in enumerate(entries, 1):
        yield _read_declared(f"{path}: entry {number} of {model}", model, entry)


def _read_declared(where: str, model: str, entry: Mapping[str, Any]) -> Declared:
    values: dict[str, Any] = {}
    for name, value in entry.items():
        if name not in FIELDS:
            raise UsageError(f"{where} has an unknown field {name!r}{suggestion(name, FIELDS)}")
        if FIELDS[name] == "str":
            fits = isinstance(value, str)
        else:
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not fits:
            wanted = "a text" if FIELDS[name] == "str" else "a list of texts"
            raise UsageError(f"{where}: {name} must be {wanted}, got {value!r}")
        values[name] = value if isinstance(value, str) else tuple(value)
    if "outcome" not in values:
        raise UsageError(f"{where} has no outcome")
    if not values.get("reason"):
        raise UsageError(f"{where} has no reason; say in a sentence why it diverges")
    return Declared(model, **values)


def append(path: Path, found: Iterable[tuple[Declared, str]]) -> None:
    """Write divergences to the end of a file, which is made if there is none. What is in it stays as it is.

    Args:
        path: the file.
        found: the divergences, each with a remark for the reader.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("" if file.tell() else HEAD)
            file.writelines(_text(declared, remark) for declared, remark in found)
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}") from None


def _text(declared: Declared, remark: str) -> str:
    lines = [f"\n# {remark}", f"[[{_key(declared.model)}]]"]
    for name in FIELDS:
        value = getattr(declared, name)
        if value or name == "reason":
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _key(model: str) -> str:
    return model if BARE.fullmatch(model) else json.dumps(model)

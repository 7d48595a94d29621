"""Reads and writes the divergences that people declare outside the code: a TOML file with a list for each model."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from conformance.errors import UsageError, suggestion
from conformance.judging import toml_file
from zoo.errors import SpecError
from zoo.expect import AXES, Expect

FIELDS = [field.name for field in fields(Expect)]
BARE = re.compile(r"[A-Za-z0-9_-]+")
HEAD = """\
# Divergences of models that are known and accepted. Each needs a reason that a reader can check.
# `conformance run … --expect THIS_FILE` applies them; one that is no longer true makes its cell red.
"""


def read(path: Path) -> dict[str, tuple[Expect, ...]]:
    """The divergences in a file, by the model's name.

    Raises:
        UsageError: there is no such file, it is no TOML, a field is unknown or of another type, or a reason is missing.
    """
    try:
        tables = toml_file.read(path)
    except FileNotFoundError:
        raise UsageError(f"no file {path}") from None
    return {model: tuple(_of_model(path, model, entries)) for model, entries in tables.items()}


def _of_model(path: Path, model: str, entries: Any) -> Iterator[Expect]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: {model} must be a list of tables; write [[{_key(model)}]] above each")
    for number, entry in enumerate(entries, 1):
        yield _read_entry(f"{path}: entry {number} of {model}", entry)


def _read_entry(where: str, entry: Mapping[str, Any]) -> Expect:
    values: dict[str, Any] = {}
    for name, value in entry.items():
        if name not in FIELDS:
            raise UsageError(f"{where} has an unknown field {name!r}{suggestion(name, FIELDS)}")
        if name in AXES and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise UsageError(f"{where}: {name} must be a list of texts, got {value!r}")
        values[name] = tuple(value) if name in AXES else value
    if "outcome" not in values:
        raise UsageError(f"{where} has no outcome")
    if not values.get("reason"):
        raise UsageError(f"{where} has no reason; say in a sentence why it diverges")
    try:
        return Expect(**values)
    except SpecError as problem:
        raise UsageError(f"{where}: {problem}") from None


def append(path: Path, found: Iterable[tuple[str, Expect, str]]) -> None:
    """Write divergences to the end of a file, which is made if there is none. What is in it stays as it is.

    Each comes with its model and a remark for the reader, and has an empty reason, which a person fills in.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("" if file.tell() else HEAD)
            file.writelines(_text(*entry) for entry in found)
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}") from None


def remove(path: Path, places: Collection[tuple[str, int]]) -> None:
    """Take entries out of a file, each with the remark right above it. What else is in it stays as it is.

    Args:
        path: the file.
        places: model and number of each entry, from 0, in the order in which `read` gives them.

    Raises:
        UsageError: the file cannot be written, or an entry does not begin with [[MODEL]] on a line of its own.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.startswith("[[")]
    begins = [_remark_above(lines, head) for head in heads] + [len(lines)]
    left, counts = lines[: begins[0]], Counter[str]()
    for head, begin, end in zip(heads, begins, begins[1:], strict=False):
        (model,) = toml_file.parse(lines[head])
        if (model, counts[model]) not in places:
            left += lines[begin:end]
        counts[model] += 1
    wanted = {
        model: rest
        for model, entries in toml_file.read(path).items()
        if (rest := [entry for number, entry in enumerate(entries) if (model, number) not in places])
    }
    if toml_file.parse("".join(left)) != wanted:
        raise UsageError(f"{path}: write each entry below a line [[MODEL]], or take entries out by hand")
    try:
        path.write_text("".join(left), encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem.strerror}") from None


def _remark_above(lines: Sequence[str], head: int) -> int:
    while head and lines[head - 1].startswith("#"):
        head -= 1
    return head


def _text(model: str, declared: Expect, remark: str) -> str:
    lines = [f"\n# {remark}", f"[[{_key(model)}]]"]
    for name, value in asdict(declared).items():
        if name == "reason":
            lines.append('reason = ""')
        elif value:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _key(model: str) -> str:
    return model if BARE.fullmatch(model) else json.dumps(model)

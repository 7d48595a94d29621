"""Draws the changes between two runs as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.figures.changes import DECIDING, KINDS, Change
from conformance.records.convert import to_json
from conformance.show.text import escape, markdown_table, table, visible

HEAD = ["cell", "A", "B", "why"]
SAME = "A and B were made in the same environment."

Surroundings = Mapping[str, tuple[str, str]]


def text(names: tuple[str, str], around: Surroundings, found: Sequence[Change]) -> str:
    """The changes as text.

    Args:
        names: the folders of the two runs.
        around: what differs around them; see `figures.changes.surroundings`.
        found: the changes.
    """
    parts = [f"A {visible(names[0])}\nB {visible(names[1])}", _verdict(found)]
    parts.append(table(_around(around), ["", "A", "B"]) or SAME)
    parts += [f"{kind}: {KINDS[kind]}\n{table(rows, HEAD)}" for kind, rows in _rows(found).items()]
    return "\n\n".join(parts)


def markdown(names: tuple[str, str], around: Surroundings, found: Sequence[Change]) -> str:
    """The changes as Markdown; see `text`."""
    parts = [f"# {_verdict(found)}", f"A: {_code(names[0])}  \nB: {_code(names[1])}"]
    differing = [list(map(escape, row)) for row in _around(around)]
    parts.append(markdown_table(differing, ["", "A", "B"]) if differing else SAME)
    for kind, rows in _rows(found).items():
        drawn = markdown_table([[_code(row[0]), *map(escape, row[1:])] for row in rows], HEAD)
        parts.append(f"## {kind} ({len(rows)})\n\n{KINDS[kind]}.\n\n{drawn}")
    return "\n\n".join(parts) + "\n"


def document(names: tuple[str, str], around: Surroundings, found: Sequence[Change]) -> str:
    """The changes as JSON; see `text`."""
    fields: dict[str, Any] = {"a": names[0], "b": names[1], "differs": {k: list(v) for k, v in around.items()}}
    return json.dumps({**fields, "changes": [to_json(change) for change in found]}, indent=1) + "\n"


def _verdict(found: Sequence[Change]) -> str:
    counts = {kind: sum(change.kind == kind for change in found) for kind in KINDS}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    worse = any(counts[kind] for kind in DECIDING)
    return f"{'✗' if worse else '✓'} {told or 'no changes'}"


def _rows(found: Sequence[Change]) -> dict[str, list[list[str]]]:
    rows: dict[str, list[list[str]]] = {}
    for change in found:
        row = [change.cell, change.before, change.after, change.text]
        rows.setdefault(change.kind, []).append([visible(word) for word in row])
    return rows


def _around(around: Surroundings) -> list[list[str]]:
    return [[name, *map(visible, pair)] for name, pair in around.items()]


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"

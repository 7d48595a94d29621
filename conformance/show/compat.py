"""Draws what works since which torch version, and the atlas of torch's known faults: as text, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.figures.history import (
    CORRECT,
    DECLARED,
    OTHER_DTYPE,
    RED,
    SHOWN,
    WORKS,
    Fault,
    History,
)
from conformance.records.convert import to_json
from conformance.show.text import escaped, markdown_table, table, visible

GLYPHS = {WORKS: "✓", OTHER_DTYPE: "≠", DECLARED: "–", RED: "✗"}
ABSENT = "·"
LEGEND = "✓ works, ≠ works with another dtype, as declared, – does not work, as declared, ✗ red, · not judged."
OF_FAULTS = {SHOWN: "✗", CORRECT: "✓"}
LEGEND_OF_FAULTS = "✗ this torch has the fault, ✓ it is correct, · not known."

Notes = dict[tuple[str, str], int]  # reason and link: number


@dataclass(frozen=True)
class Atlas:
    """What is drawn.

    Attributes:
        versions: torch versions, rising.
        made: one line for each run: what made it.
        cells: each cell in all versions.
        faults: each probe in all versions.
    """

    versions: Sequence[str]
    made: Sequence[str]
    cells: Sequence[History]
    faults: Sequence[Fault]


def text(atlas: Atlas) -> str:
    """The atlas as text."""
    notes: Notes = {}
    parts = ["\n".join(map(visible, atlas.made)), visible(_sentence(atlas))]
    rows, head = _rows(atlas, notes)
    parts += [table(rows, head), LEGEND if rows else ""]
    parts.append(
        "\n".join(f"({number}) {visible(why)}{f'  {link}' if link else ''}" for (why, link), number in notes.items())
    )
    if atlas.faults:
        faults, head = _fault_rows(atlas)
        parts += [table([row[:-1] for row in faults], head[:-1]), LEGEND_OF_FAULTS]
    return "\n\n".join(part for part in parts if part)


def markdown(atlas: Atlas) -> str:
    """The atlas as a page in Markdown."""
    notes: Notes = {}
    parts = ["# What works since which torch", *([_list(atlas.made)] if atlas.made else []), escaped(_sentence(atlas))]
    rows, head = _rows(atlas, notes)
    if rows:
        parts += [_table(rows, head), LEGEND]
    if notes:
        parts.append("\n".join(f"- ({n}) {escaped(why)}{_link(link)}" for (why, link), n in notes.items()))
    if atlas.faults:
        faults, head = _fault_rows(atlas)
        parts += ["## Faults of torch", _table(faults, head), LEGEND_OF_FAULTS]
    return "\n\n".join(parts) + "\n"


def document(atlas: Atlas) -> str:
    """The atlas as JSON."""
    cells: list[dict[str, Any]] = [
        {
            **to_json(history.cell),
            "since": history.since,
            "broke": list(history.broke),
            "mended": list(history.mended),
            "states": {version: to_json(state) for version, state in history.states.items()},
        }
        for history in atlas.cells
    ]
    faults = [{**to_json(f.probe), "device": f.device, "states": dict(f.states)} for f in atlas.faults]
    return json.dumps({"versions": list(atlas.versions), "cells": cells, "faults": faults}, indent=1) + "\n"


def _sentence(atlas: Atlas) -> str:
    if not atlas.cells:
        return ""
    always = [history for history in atlas.cells if _always(history, atlas)]
    models = len({history.cell.model for history in always})
    return f"{len(always)} of {len(atlas.cells)} cells, of {models} models, work in all {len(atlas.versions)} versions."


def _always(history: History, atlas: Atlas) -> bool:
    """Whether a cell passes in every version."""
    return all(v in history.states and history.states[v].kind == WORKS for v in atlas.versions)


def _rows(atlas: Atlas, notes: Notes) -> tuple[list[list[str]], list[str]]:
    """The cells that do not simply pass in every version; precisions with the same history stand in one row."""
    folded: dict[tuple[str, ...], list[str]] = {}
    for history in atlas.cells:
        if _always(history, atlas):
            continue
        states = [history.states.get(version) for version in atlas.versions]
        signs = [GLYPHS[state.kind] if state else ABSENT for state in states]
        numbers = dict.fromkeys(_number(s.reason, s.link, notes) for s in states if s and s.reason)
        turns = [history.since, ", ".join(history.broke), ", ".join(history.mended), " ".join(numbers)]
        cell = history.cell
        folded.setdefault((cell.model, cell.mode, cell.device, *signs, *turns), []).append(cell.precision)
    head = ["model", "mode", "precision", "device", *atlas.versions, "since", "broke", "mended", "why"]
    return [[model, mode, ", ".join(p), *rest] for (model, mode, *rest), p in folded.items()], head


def _number(reason: str, link: str, notes: Notes) -> str:
    return f"({notes.setdefault((reason, link), len(notes) + 1)})"


def _fault_rows(atlas: Atlas) -> tuple[list[list[str]], list[str]]:
    rows = []
    for fault in atlas.faults:
        signs = [OF_FAULTS.get(fault.states.get(version, ""), ABSENT) for version in atlas.versions]
        shown = ", ".join(version for version, state in fault.states.items() if state == SHOWN)
        probe = fault.probe
        rows.append([probe.probe, fault.device, *signs, shown or "none", probe.summary, probe.link, probe.remedy])
    return rows, ["probe", "device", *atlas.versions, "seen in", "at risk", "issue or source", "instead"]


def _table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    return markdown_table([list(map(escaped, row)) for row in rows], head)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _link(link: str) -> str:
    return f" {escaped(link)}" if link else ""

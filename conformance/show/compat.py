"""Draws what works since which torch version, and the atlas of torch's known faults: as text and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.figures.atlas import Atlas
from conformance.figures.history import CORRECT, DECLARED, OTHER_DTYPE, RED, SHOWN, WORKS, History
from conformance.records.cell import Cell
from conformance.show.text import escape, markdown_table, table, visible

GLYPHS = {WORKS: "✓", OTHER_DTYPE: "≠", DECLARED: "–", RED: "✗"}
ABSENT = "·"
LEGEND = "✓ works, ≠ works with another dtype, as declared, – does not work, as declared, ✗ red, · not judged."
OF_FAULTS = {SHOWN: "✗", CORRECT: "✓"}
LEGEND_OF_FAULTS = "✗ this torch has the fault, ✓ it is correct, · not known."

CHANGED, LASTING = "What differs between versions", "What is the same in every version that judged it"

Notes = dict[tuple[str, str], int]  # reason and link: number
Section = tuple[str, list[list[str]], list[str]]  # title, rows, head


def text(atlas: Atlas) -> str:
    """The atlas as text."""
    notes: Notes = {}
    parts = ["\n".join(map(visible, _makers(atlas))), visible(_sentence(atlas))]
    sections = _sections(atlas, notes)
    parts += [f"{title}:\n{table(rows, head)}" for title, rows, head in sections]
    parts.append(LEGEND if sections else "")
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
    parts = [
        "# What works since which torch",
        *([_list(_makers(atlas))] if atlas.makers else []),
        escape(_sentence(atlas)),
    ]
    sections = _sections(atlas, notes)
    for title, rows, head in sections:
        parts += [f"## {title}", _table(rows, head)]
    if sections:
        parts.append(LEGEND)
    if notes:
        parts.append("\n".join(f"- ({n}) {escape(why)}{_link(link)}" for (why, link), n in notes.items()))
    if atlas.faults:
        faults, head = _fault_rows(atlas)
        parts += ["## Faults of torch", _table(faults, head), LEGEND_OF_FAULTS]
    return "\n\n".join(parts) + "\n"


def _makers(atlas: Atlas) -> list[str]:
    return [f"{maker.text} · {maker.judge.day or 'no date'} · {maker.judge}" for maker in atlas.makers]


def _sentence(atlas: Atlas) -> str:
    if not atlas.cells:
        return ""
    always = [history for history in atlas.cells if _kinds(history) == {WORKS}]
    models = len({history.cell.model for history in always})
    where = f"in each of the {len(atlas.versions)} versions that judged them"
    return f"{len(always)} of {len(atlas.cells)} cells, of {models} models, work {where}."


def _kinds(history: History) -> set[str]:
    return {state.kind for state in history.states.values()}


def _sections(atlas: Atlas, notes: Notes) -> list[Section]:
    """The cells that do not simply work: first those that versions differ in, then the others."""
    changed: dict[tuple[str, ...], list[Cell]] = {}
    lasting: dict[tuple[str, ...], list[Cell]] = {}
    for history in atlas.cells:
        if _kinds(history) == {WORKS}:
            continue
        states = [history.states.get(version) for version in atlas.versions]
        signs = [GLYPHS[state.kind] if state else ABSENT for state in states]
        why = " ".join(dict.fromkeys(_number(s.reason, s.link, notes) for s in states if s and s.reason))
        model, device = history.cell.model, history.cell.device
        if len(_kinds(history)) > 1:
            turns = (history.since, ", ".join(history.broke), ", ".join(history.mended))
            changed.setdefault((model, device, *signs, *turns, why), []).append(history.cell)
        else:
            (sign,) = set(signs) - {ABSENT}
            lasting.setdefault((model, device, sign, why), []).append(history.cell)
    cell = ["model", "mode", "precision", "device"]
    sections = [
        (CHANGED, _fold(changed), [*cell, *atlas.versions, "since", "broke", "mended", "why"]),
        (LASTING, _fold(lasting), [*cell, "verdict", "why"]),
    ]
    return [section for section in sections if section[1]]


def _fold(cells: Mapping[tuple[str, ...], Sequence[Cell]]) -> list[list[str]]:
    """One row for all modes and precisions of a model that have the same history."""
    rows = []
    for (model, *rest), alike in cells.items():
        precisions: dict[str, list[str]] = {}
        for cell in alike:
            precisions.setdefault(cell.mode, []).append(cell.precision)
        modes: dict[tuple[str, ...], list[str]] = {}
        for mode, named in precisions.items():
            modes.setdefault(tuple(named), []).append(mode)
        rows += [[model, ", ".join(modes[named]), ", ".join(named), *rest] for named in modes]
    return rows


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
    return markdown_table([list(map(escape, row)) for row in rows], head)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _link(link: str) -> str:
    return f" {escape(link)}" if link else ""

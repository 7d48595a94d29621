"""Draws what several runs say: the changes between two of them, and what works since which torch version."""

import json
from collections.abc import Mapping, Sequence

from conformance.figures import atlas
from conformance.records.cell import Cell
from conformance.records.convert import to_json
from conformance.show import page
from conformance.show.text import escape, markdown_table, table, visible

HEAD = ["cell", "A", "B", "why"]
SAME = "A and B were made in the same environment."

GLYPHS = {atlas.WORKS: "✓", atlas.OTHER_DTYPE: "≠", atlas.DECLARED: "–", atlas.RED: "✗"}
ABSENT = "·"
LEGEND = "✓ works, ≠ works with another dtype, as declared, – does not work, as declared, ✗ red, · not judged."
OF_FAULTS = {atlas.SHOWN: "✗", atlas.CORRECT: "✓"}
LEGEND_OF_FAULTS = "✗ this torch has the fault, ✓ it is correct, · not known."
CHANGED, LASTING = "What differs between versions", "What is the same in every version that judged it"

Notes = dict[tuple[str, str], int]  # reason and link: number
Section = tuple[str, list[list[str]], list[str]]  # title, rows, head


def changes_text(found: atlas.Comparison) -> str:
    """The changes between two runs as text."""
    parts = [f"A {visible(found.a)}\nB {visible(found.b)}", _verdict(found)]
    parts.append(table(_differing(found), ["", "A", "B"]) or SAME)
    parts += [f"{kind}: {atlas.KINDS[kind]}\n{table(rows, HEAD)}" for kind, rows in _changes(found).items()]
    return "\n\n".join(parts)


def changes_page(found: atlas.Comparison) -> str:
    """The changes between two runs as Markdown."""
    parts = [f"# {_verdict(found)}", f"A: {_code(found.a)}  \nB: {_code(found.b)}"]
    parts.append(_markdown(_differing(found), ["", "A", "B"]) if found.differs else SAME)
    for kind, rows in _changes(found).items():
        drawn = markdown_table([[_code(row[0]), *map(escape, row[1:])] for row in rows], HEAD)
        parts.append(f"## {kind} ({len(rows)})\n\n{atlas.KINDS[kind]}.\n\n{drawn}")
    return "\n\n".join(parts) + "\n"


def changes_json(found: atlas.Comparison) -> str:
    """The changes between two runs as JSON."""
    return json.dumps(to_json(found), indent=1) + "\n"


def _verdict(found: atlas.Comparison) -> str:
    counts = {kind: sum(change.kind == kind for change in found.changes) for kind in atlas.KINDS}
    text = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{'✗' if found.is_worse else '✓'} {text or 'no changes'}"


def _changes(found: atlas.Comparison) -> dict[str, list[list[str]]]:
    rows: dict[str, list[list[str]]] = {}
    for change in found.changes:
        row = [change.cell, change.before, change.after, change.text]
        rows.setdefault(change.kind, []).append([visible(word) for word in row])
    return rows


def _differing(found: atlas.Comparison) -> list[list[str]]:
    return [[name, *map(visible, pair)] for name, pair in found.differs.items()]


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _markdown(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    return markdown_table([list(map(escape, row)) for row in rows], head)


def atlas_text(found: atlas.Atlas) -> str:
    """What works since which torch version, as text."""
    notes: Notes = {}
    sections = _sections(found, notes)
    faults, head = _faults(found)
    parts = [
        "\n".join(map(visible, _makers(found))),
        visible(_sentence(found)),
        *(f"{title}:\n{table(rows, columns)}" for title, rows, columns in sections),
        LEGEND if sections else "",
        "\n".join(f"({n}) {visible(why)}{f'  {link}' if link else ''}" for (why, link), n in notes.items()),
        table([row[:-1] for row in faults], head[:-1]),
        LEGEND_OF_FAULTS if faults else "",
    ]
    return "\n\n".join(filter(None, parts))


def atlas_page(found: atlas.Atlas) -> str:
    """What works since which torch version, as a page in Markdown."""
    notes: Notes = {}
    sections = _sections(found, notes)
    parts = [
        "# What works since which torch",
        "\n".join(f"- {escape(maker)}" for maker in _makers(found)),
        escape(_sentence(found)),
        *(f"## {title}\n\n{_markdown(rows, columns)}" for title, rows, columns in sections),
        LEGEND if sections else "",
        "\n".join(f"- ({n}) {escape(why)}{f' {escape(link)}' if link else ''}" for (why, link), n in notes.items()),
        *(["## Faults of torch", _markdown(*_faults(found)), LEGEND_OF_FAULTS] if found.faults else []),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def atlas_html(found: atlas.Atlas) -> str:
    """What works since which torch version, as one page of HTML; see `page.fill`."""
    notes: Notes = {}
    return page.fill(
        "versions.html",
        sections=_sections(found, notes),
        notes=list(notes),
        makers=_makers(found),
        sentence=_sentence(found),
        versions=list(found.versions),
        faults=_faults(found)[0],
        legend=LEGEND,
        legend_of_faults=LEGEND_OF_FAULTS,
    )


def _makers(found: atlas.Atlas) -> list[str]:
    return [f"{maker.text} · {maker.judge.day or 'no date'} · {maker.judge}" for maker in found.makers]


def _sentence(found: atlas.Atlas) -> str:
    if not found.cells:
        return ""
    always = [history for history in found.cells if _kinds(history) == {atlas.WORKS}]
    models = len({history.cell.model for history in always})
    where = f"in each of the {len(found.versions)} versions that judged them"
    return f"{len(always)} of {len(found.cells)} cells, of {models} models, work {where}."


def _kinds(history: atlas.History) -> set[str]:
    return {state.kind for state in history.states.values()}


def _sections(found: atlas.Atlas, notes: Notes) -> list[Section]:
    """The cells that do not simply work: first those that versions differ in, then the others."""
    changed: dict[tuple[str, ...], list[Cell]] = {}
    lasting: dict[tuple[str, ...], list[Cell]] = {}
    for history in found.cells:
        if _kinds(history) == {atlas.WORKS}:
            continue
        states = [history.states.get(version) for version in found.versions]
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
        (CHANGED, _fold(changed), [*cell, *found.versions, "since", "broke", "mended", "why"]),
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


def _faults(found: atlas.Atlas) -> tuple[list[list[str]], list[str]]:
    rows = []
    for fault in found.faults:
        signs = [OF_FAULTS.get(fault.states.get(version, ""), ABSENT) for version in found.versions]
        shown = ", ".join(version for version, state in fault.states.items() if state == atlas.SHOWN)
        probe = fault.probe
        rows.append([probe.probe, fault.device, *signs, shown or "none", probe.summary, probe.link, probe.remedy])
    return rows, ["probe", "device", *found.versions, "seen in", "at risk", "issue or source", "instead"]

"""Draws the models that are wrong on purpose: one line each, with what they come out as and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from conformance.records.plan import PlannedCell
from conformance.records.verdicts import STATUSES, Verdict
from conformance.show.text import table, visible

HEAD = "Wrong on purpose. Each must come out as declared; conformance run counterexamples shows their cells."


def section(cells: Sequence[PlannedCell], verdicts: Mapping[str, Verdict]) -> str:
    """A line for each model.

    Args:
        cells: the cells of counterexamples.
        verdicts: verdicts by cell id.
    """
    models: dict[str, list[Verdict]] = {}
    for planned in cells:
        models.setdefault(planned.cell.model, []).append(verdicts[planned.id])
    rows = [[_sign(own), model, _count(own)] for model, own in models.items()]
    for row, own in zip(rows, models.values(), strict=True):
        row.append(visible(next((verdict.reason for verdict in own if verdict.reason), "")))
    return f"{HEAD}\n\n{table(rows, ['', 'model', 'cells', 'why'])}"


def _sign(own: Sequence[Verdict]) -> str:
    """The sign of the first red cell, or of the first that is not simply right."""
    by_urgency = sorted(own, key=lambda verdict: (not verdict.red, verdict.status == "PASS"))
    return STATUSES[by_urgency[0].status].glyph


def _count(own: Sequence[Verdict]) -> str:
    """How many cells came out as what."""
    counts = Counter("pass" if verdict.status == "PASS" else visible(verdict.short) for verdict in own)
    return ", ".join(f"{number} {word}" for word, number in counts.items())

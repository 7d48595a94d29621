"""Names the planted cells that each run judges beside its own, and tells whether they came out as planted.

One computes a wrong value, and one kills its process. If either comes out in another way, the run does not see faults,
and none of its verdicts counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conformance.records.cell import Cell
from conformance.records.verdicts import Verdict

MODEL = "planted"
WRONG, DYING = (Cell(MODEL, mode, "fp32", "cpu") for mode in ("wrong", "dying"))
PLANTED = {WRONG.id: "FAIL", DYING.id: "CRASH"}  # how each must come out


def why_void(planted: Mapping[str, str], judged: Iterable[Verdict]) -> str:
    """Why a run counts for nothing, on one line; "" if every planted cell was judged and came out as planted.

    Args:
        planted: the status that each planted cell must have, by its id.
        judged: the verdicts on planted cells, some of them several times, once in each process that judges cells.
    """
    found: dict[str, set[str]] = {}
    for verdict in judged:
        found.setdefault(verdict.cell, set()).add(verdict.status)
    wrong = [
        f"{cell} was planted to be {status} and {came_out(found.get(cell, set()) - {status})}"
        for cell, status in planted.items()
        if found.get(cell) != {status}
    ]
    return "; ".join(wrong)


def came_out(statuses: Iterable[str]) -> str:
    """How a planted cell came out that is not as planted."""
    named = " and ".join(sorted(statuses))
    return f"came out as {named}" if named else "was not judged"

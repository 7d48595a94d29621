"""The speeds of a judged run: which contests to hold, each in two processes, and what they say together.

A speed is only ever measured beside a green cell, against eager fp32 of the same weights and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance import interval, jobs, machine
from conformance.execution import Execution
from conformance.interval import Ratio
from conformance.jobs import Answer
from conformance.records import Cell, Observation, Speed, Verdict
from conformance.store import Contents, cell_id

USUAL = "usual"
PROCESSES = 2  # a process has a bias of its own: which addresses its weights have
BUDGET, USUAL_BUDGET = 0.5, 0.12  # seconds that calls of one member may take in one process


@dataclass(frozen=True)
class Contest:
    """Cells that are timed together.

    Attributes:
        name: model, precision and device.
        members: planned cells, the baseline first; none where there is nothing to time.
        refused: the cells that cannot be timed, with the reason.
    """

    name: str
    members: tuple[dict[str, Any], ...]
    refused: tuple[Speed, ...] = ()

    @property
    def timed(self) -> list[str]:
        """The cells it finds a speed of; a baseline of another precision has a contest of its own."""
        return [cell_id(m) for m in self.members if m["precision"] == self.members[-1]["precision"]]

    def jobs(self, figure: str) -> list[str]:
        """The names under which its answers are stored."""
        return [f"speed {figure} {self.name} #{lot}" for lot in range(PROCESSES)] if self.members else []


def contests(plan: dict[str, Any], verdicts: Mapping[str, Verdict]) -> list[Contest]:
    """One contest for each model, precision and device: all green cells, against eager fp32."""
    cells = {cell_id(c): c for c in plan["cells"] if cell_id(c) in verdicts and not c["skip"]}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, cell in cells.items():
        groups.setdefault((cell["model"], cell["precision"], cell["device"]), []).append(name)
    found = []
    for (model, precision, device), names in groups.items():
        base = Cell(model, "eager", "fp32", device).id
        missing = objection(base, cells.get(base), verdicts)
        members, refused = [] if missing else [cells[base]], []
        for name in names:
            why = objection(name, cells[name], verdicts)
            if missing and not why:
                why = f"no baseline: {base} is {missing.partition(':')[0]}"
            if why:
                refused.append(Speed(name, reason=why))
            elif name != base:
                members.append(cells[name])
        worth_it = members and (precision == "fp32" or len(members) > 1)
        found.append(Contest(f"{model}[{precision}-{device}]", tuple(members if worth_it else ()), tuple(refused)))
    return found


def usual(figures: Sequence[str]) -> str:
    """Of the figures a model has, the one it is timed by where nobody asks for another."""
    return "gradient" if "gradient" in figures else figures[0]


def green(contents: Contents) -> list[Cell]:
    """The cells of which a figure may be taken."""
    planned = [(cell_id(c), c) for c in contents.plan["cells"] if not c["skip"] and cell_id(c) in contents.verdicts]
    return [Cell.of(c) for name, c in planned if not objection(name, c, contents.verdicts)]


def objection(name: str, planned: dict[str, Any] | None, verdicts: Mapping[str, Verdict]) -> str:
    """Why a cell is given no speed; "" where it is green."""
    if planned is None:
        return "not judged"
    verdict = verdicts[name]
    only_dtypes = all(e["outcome"] == "dtype" for e in planned["expect"])
    if verdict.status == "PASS" or (verdict.status == "EXPECTED" and only_dtypes):
        return ""
    return f"{verdict.status}: no speed without a green cell"


def hold(
    plan: dict[str, Any], contest: Contest, execution: Execution, figure: str, *, keep: bool = False
) -> dict[str, Callable[[], Answer]]:
    """The jobs of one contest, by name; `keep` stores every sample."""
    return {
        name: partial(hold_once, plan, contest.members, execution, figure, lot=lot, keep=keep)
        for lot, name in enumerate(contest.jobs(figure))
    }


def hold_once(  # noqa: PLR0913 -- all that a process is told
    plan: dict[str, Any],
    members: Sequence[dict[str, Any]],
    execution: Execution,
    figure: str,
    *,
    lot: int,
    keep: bool,
) -> Answer:
    told = []
    for planned in members:
        with machine.shared():
            reference = execution.reference(planned["model"])
        if isinstance(reference, Observation):
            return {"reason": f"no reference: {reference.message}"}
        cell, home = vars(Cell.of(planned)), plan["models"][planned["model"]]
        told.append({"cell": cell, "home": home, "reference": str(reference), "expect": planned["expect"]})
    shared = {
        "homes": plan["homes"],
        "seed": plan["seed"],
        "lot": lot,
        "budget": USUAL_BUDGET if figure == USUAL else BUDGET,
        "keep": keep,
    }
    taken = usual(plan["figures"][members[0]["model"]]) if figure == USUAL else figure
    task = {"members": told, "figure": taken, **shared}
    return jobs.answer("conformance.contest:observe", task, plan["deadline"])


def speeds(contents: Contents, figure: str = USUAL) -> dict[str, Speed]:
    """By cell id, what the stored answers say together; a contest that is not over yet says nothing."""
    found: dict[str, Speed] = {}
    for contest in contests(contents.plan, contents.verdicts):
        answers = [contents.answers[name] for name in contest.jobs(figure) if name in contents.answers]
        if len(answers) == len(contest.jobs(figure)):
            found |= {speed.cell: speed for speed in contest.refused}
            found |= {name: pooled(name, answers) for name in contest.timed} if answers else {}
    return found


def pooled(name: str, answers: Sequence[Answer]) -> Speed:
    """One cell's speed from the answers of all processes; what one could not measure has no figure."""
    figure = answers[0].get("figure", "")
    seen = [answer["members"][name] if "members" in answer else answer for answer in answers]
    reason = next((s["reason"] for s in seen if "reason" in s), "")
    if reason:
        return Speed(name, figure, reason=reason)
    return Speed(
        name,
        figure,
        seconds=min(s["seconds"] for s in seen),
        ratios={b: interval.pooled([Ratio.from_json(s["ratios"][b]) for s in seen]) for b in seen[0]["ratios"]},
        warm_calls=max(s["warm_calls"] for s in seen),
    )


def jobs_of(contents: Contents, execution: Execution) -> dict[str, Callable[[], Answer]]:
    """The jobs that the table's speeds rest on, by name."""
    found: dict[str, Callable[[], Answer]] = {}
    for contest in contests(contents.plan, contents.verdicts):
        found |= hold(contents.plan, contest, execution, USUAL)
    return found


def completed(contents: Contents, job: str) -> list[Speed]:
    """The table's speeds of the contest that a job belongs to, once all its jobs are answered."""
    for contest in contests(contents.plan, contents.verdicts):
        names = contest.jobs(USUAL)
        if job in names and contents.answers.keys() >= set(names):
            return [pooled(name, [contents.answers[n] for n in names]) for name in contest.timed]
    return []

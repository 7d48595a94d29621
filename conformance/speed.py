"""The speeds of a judged run: which contests to hold, each in two processes, and what they say together.

A speed is only ever measured beside a green cell, against eager fp32 of the same weights and inputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from conformance import interval, isolation
from conformance.execution import Execution
from conformance.interval import Ratio
from conformance.records import Cell, Observation, Speed, Verdict

PROCESSES = 2  # a process has a bias of its own: which addresses its weights have
BUDGET = 0.5  # seconds of sampling that one member may take in one process


@dataclass(frozen=True)
class Contest:
    """Cells that are timed together, the baseline first, and those of them that can only be given a reason."""

    members: tuple[dict[str, Any], ...]
    refused: tuple[Speed, ...] = ()

    @property
    def cells(self) -> list[str]:
        """Those that this contest gives a speed; a baseline of another precision has a contest of its own."""
        timed = [_id(m) for m in self.members if m["precision"] == self.members[-1]["precision"]]
        return [*timed, *(speed.cell for speed in self.refused)]


def contests(plan: dict[str, Any], verdicts: Mapping[str, Verdict]) -> list[Contest]:
    """One contest for each model, precision and device: all green cells, against eager fp32."""
    cells = {_id(c): c for c in plan["cells"] if _id(c) in verdicts and not c["skip"]}
    found = []
    for model, precision, device in dict.fromkeys((c["model"], c["precision"], c["device"]) for c in cells.values()):
        base = Cell(model, "eager", "fp32", device).id
        own = [c for c in cells.values() if (c["model"], c["precision"], c["device"]) == (model, precision, device)]
        objection = _objection(base, cells.get(base), verdicts)
        excuse = objection and f"no baseline: {base} is {objection.partition(':')[0]}"
        green = [c for c in own if not excuse and not _objection(_id(c), c, verdicts)]
        refused = [Speed(_id(c), reason=excuse or _objection(_id(c), c, verdicts)) for c in own if c not in green]
        members = [cells[base], *(c for c in green if _id(c) != base)] if green else []
        found.append(Contest(tuple(members), tuple(refused)))
    return found


def _id(planned: dict[str, Any]) -> str:
    return Cell(planned["model"], planned["mode"], planned["precision"], planned["device"]).id


def _objection(name: str, planned: dict[str, Any] | None, verdicts: Mapping[str, Verdict]) -> str:
    """Why a cell is given no speed; "" where it is green."""
    if planned is None:
        return "not judged"
    verdict = verdicts[name]
    only_dtypes = all(e["outcome"] == "dtype" for e in planned["expect"])
    if verdict.status == "PASS" or (verdict.status == "EXPECTED" and only_dtypes):
        return ""
    return f"{verdict.status}: no speed without a green cell"


def hold(plan: dict[str, Any], chosen: list[Contest], execution: Execution) -> Iterator[tuple[Contest, list[Speed]]]:
    """Hold contests, and yield the speeds of each as it is over.

    Several processes prepare at a time; they measure one after the other, with no cell of any run beside them.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        pending: dict[Future[dict[str, Any]], int] = {}
        answers: list[list[dict[str, Any]]] = [[] for _ in chosen]
        for number, contest in enumerate(chosen):
            if not contest.members:
                yield contest, list(contest.refused)
                continue
            for lot in range(PROCESSES):
                pending[pool.submit(_hold_once, plan, contest, execution, lot)] = number
        try:
            for done in as_completed(pending):
                number = pending[done]
                answers[number].append(done.result())
                if len(answers[number]) == PROCESSES:
                    yield chosen[number], [*chosen[number].refused, *_pooled(chosen[number], answers[number])]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _hold_once(plan: dict[str, Any], contest: Contest, execution: Execution, lot: int) -> dict[str, Any]:
    reference = execution.reference(contest.members[0]["model"])
    if isinstance(reference, Observation):
        return _nothing(contest, f"no reference: {reference.message}")
    members = [
        {
            "cell": {axis: member[axis] for axis in ("model", "mode", "precision", "device")},
            "home": plan["models"][member["model"]],
            "reference": str(reference),
            "expect": member["expect"],
        }
        for member in contest.members
    ]
    shared = {"homes": plan["homes"], "seed": plan["seed"]}
    task = {"members": members, **shared, "figure": "", "lot": lot, "budget": BUDGET, "keep": False}
    ending = isolation.run("conformance.contest:observe", task, deadline=plan["deadline"])
    if ending.kind != "answered":
        return _nothing(contest, f"{ending.kind}: in phase {ending.phase}, {ending.message}")
    answer: dict[str, Any] = ending.answer
    return answer


def _nothing(contest: Contest, reason: str) -> dict[str, Any]:
    return {"figure": "", "members": {_id(member): {"reason": reason} for member in contest.members}}


def _pooled(contest: Contest, answers: list[dict[str, Any]]) -> Iterator[Speed]:
    refused = {speed.cell for speed in contest.refused}
    for name in contest.cells:
        if name in refused:
            continue
        seen = [answer["members"][name] for answer in answers]
        figure = answers[0]["figure"]
        reason = next((s["reason"] for s in seen if "reason" in s), "")
        if reason:
            yield Speed(name, figure, reason=reason)
            continue
        yield Speed(
            name,
            figure,
            seconds=min(s["seconds"] for s in seen),
            ratios={b: interval.pooled([Ratio.from_json(s["ratios"][b]) for s in seen]) for b in seen[0]["ratios"]},
            warm_calls=max(s["warm_calls"] for s in seen),
        )

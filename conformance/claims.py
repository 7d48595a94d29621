"""`conformance claims`: measure the gains that sources publish, and write the page that compares.

Every model is judged at every size before it is measured there. A time is taken by contests of baseline and
variant, each in a process of its own; bytes are counted as often, and must agree.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conformance import bench, isolation, jobs, replication, run, speed, table
from conformance.axes import UsageError
from conformance.curve import Point
from conformance.execution import Execution
from conformance.interval import Ratio
from conformance.jobs import Answer
from conformance.records import Cell, Verdict
from conformance.replication import Published, Replica
from conformance.store import cell_id

PROCESSES = 3  # in each of which a gain must show


@dataclass(frozen=True)
class _Pair:
    """Baseline and variant at one size, as planned."""

    published: Published
    size: int
    baseline: dict[str, Any]
    variant: dict[str, Any]

    @property
    def is_absent(self) -> bool:
        return bool(self.baseline["skip"] or self.variant["skip"])

    @property
    def jobs(self) -> list[str]:
        members = f"{cell_id(self.variant)} against {cell_id(self.baseline)}"
        return [f"{self.published.quantity} {members} #{lot}" for lot in range(PROCESSES)]


def main(sources: list[str], write: Path | None, *, seed: int = 0, timeout: float = 300.0) -> int:
    """Test the claims of the sources, or of the whole zoo, and write the page.

    Args:
        sources: as for `conformance run`.
        write: the file for the page; None: it is printed.
        seed: of weights, inputs and the order of calls.
        timeout: seconds that a cell or a contest may take.

    Returns: 0, also where a claim is not reproduced; 1 where a cell is red; 2 where it was interrupted.

    Raises:
        UsageError: what was asked for cannot be done.
    """
    if write is not None:
        _check_writable(write)
    plan = _planned(sources, seed, timeout)
    run.prepare_children(plan, run.cache_of(plan))
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-claims-") as folder:
            replicas, verdicts = _replicate(plan, Execution(plan, Path(folder)))
    except KeyboardInterrupt:
        return int(pytest.ExitCode.INTERRUPTED)
    page = replication.page(table.header(plan), replicas)
    if write is None:
        print(page, end="")  # noqa: T201 -- this is the interface
    else:
        write.write_text(page, encoding="utf-8")
    return int(any(verdict.red for verdict in verdicts.values()))


def _check_writable(path: Path) -> None:
    """Refuse a path before anything is measured for it; only trying tells, and it leaves nothing behind."""
    existed = path.exists()
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as problem:
        raise UsageError(f"--write {path}: {problem.strerror}") from problem
    if not existed:
        path.unlink()


def _planned(sources: list[str], seed: int, timeout: float) -> dict[str, Any]:
    task = {"sources": sources, "seed": seed, "deadline": timeout}
    ending = isolation.run("conformance.published:make", task, deadline=run.PLAN_DEADLINE, method="spawn")
    if ending.kind != "answered":
        raise UsageError(f"reading the claims of {' '.join(sources) or 'the zoo'}: the process {ending.message}")
    if "usage" in ending.answer:
        raise UsageError(ending.answer["usage"])
    plan: dict[str, Any] = ending.answer
    return plan


def _replicate(plan: dict[str, Any], execution: Execution) -> tuple[list[Replica], dict[str, Verdict]]:
    """Judge all cells, then measure what is green."""
    claims = [Published.from_json(claim) for claim in plan["claims"]]
    cells = {cell_id(cell): cell for cell in plan["cells"]}
    pairs = {
        claim: [_Pair(claim, size, *(cells[cell.id] for cell in claim.cells(size))) for size in claim.sizes]
        for claim in claims
    }
    present = [pair for these in pairs.values() for pair in these if not pair.is_absent]
    verdicts = _judge(present, execution)
    points = _measure(plan, present, verdicts, execution)
    replicas = [
        Replica(claim, is_absent=True)
        if any(pair.is_absent for pair in these)
        else Replica(claim, tuple(points[pair.jobs[0]] for pair in these))
        for claim, these in pairs.items()
    ]
    return replicas, verdicts


def _judge(pairs: Sequence[_Pair], execution: Execution) -> dict[str, Verdict]:
    cells = {cell_id(cell): cell for pair in pairs for cell in (pair.baseline, pair.variant)}
    verdicts = {}
    for name, answer in jobs.carry_out({name: partial(_judged, cell, execution) for name, cell in cells.items()}):
        verdicts[name] = Verdict.from_json(answer)
        _tell(table.line(verdicts[name]))
    return verdicts


def _judged(planned: dict[str, Any], execution: Execution) -> Answer:
    return execution.verdict(planned).to_json()


def _measure(
    plan: dict[str, Any], pairs: Sequence[_Pair], verdicts: Mapping[str, Verdict], execution: Execution
) -> dict[str, Point]:
    """What came of each pair, by its first job's name."""
    points: dict[str, Point] = {}
    pending: dict[str, Callable[[], Answer]] = {}
    owners = {job: pair for pair in pairs for job in pair.jobs}
    for pair in pairs:
        why = _objection(pair, verdicts)
        if why:
            points[pair.jobs[0]] = Point(pair.size, None, why)
        else:
            work = _time if pair.published.is_timed else _count
            pending |= {job: partial(work, plan, pair, execution, lot) for lot, job in enumerate(pair.jobs)}
    answers: dict[str, Answer] = {}
    for name, answer in jobs.carry_out(pending):
        answers[name] = answer
        pair = owners[name]
        if answers.keys() >= set(pair.jobs):
            point = _point(pair, [answers[job] for job in pair.jobs])
            points[pair.jobs[0]] = point
            _tell(f"◷ {cell_id(pair.variant)} {replication.figure(point, pair.published.factor)}")
    return points


def _objection(pair: _Pair, verdicts: Mapping[str, Verdict]) -> str:
    """Why a pair is not measured; "" where both cells are green."""
    for cell in (pair.baseline, pair.variant):
        name = cell_id(cell)
        if speed.objection(name, cell, verdicts):
            verdict = verdicts[name]
            return f"{verdict.status}: {name}, {verdict.text or verdict.reason}"
    return ""


def _time(plan: dict[str, Any], pair: _Pair, execution: Execution, lot: int) -> Answer:
    members, figure = (pair.baseline, pair.variant), pair.published.quantity
    return speed.hold_once(plan, members, execution, figure, lot=lot, keep=False)


def _count(plan: dict[str, Any], pair: _Pair, _: Execution, __: int) -> Answer:
    """Bytes of baseline and variant, or the reason why there are none."""
    counts = []
    for planned in (pair.baseline, pair.variant):
        answer = bench.footprint(plan, Cell.of(planned))
        count = answer.get(pair.published.quantity)
        if not count:
            why = answer.get("reason") or answer["why"].get(pair.published.quantity) or "no bytes to compare with"
            return {"reason": f"not counted: {cell_id(planned)}, {why}"}
        counts.append(count)
    return {"bytes": counts}


def _point(pair: _Pair, answers: Sequence[Answer]) -> Point:
    """What all processes say together."""
    if pair.published.is_timed:
        found = speed.pooled(cell_id(pair.variant), answers)
        return Point(pair.size, found.ratios.get(cell_id(pair.baseline)), found.reason)
    reason = next((answer["reason"] for answer in answers if "reason" in answer), "")
    if reason:
        return Point(pair.size, None, reason)
    counts = [tuple(answer["bytes"]) for answer in answers]
    if len(set(counts)) > 1:
        return Point(pair.size, None, f"counts differ: processes counted {', '.join(map(str, counts))}")
    gain = counts[0][0] / counts[0][1]
    return Point(pair.size, Ratio(gain, gain, gain, pairs=len(counts), processes=len(counts)))


def _tell(line: str) -> None:
    """Progress goes to the error stream: the page may be on the other."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201

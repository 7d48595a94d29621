"""`conformance claims`: measures the gains that sources publish, and writes a page that compares them.

Every model is judged at every size before it is measured there. Baseline and variant are timed side by side, in
several processes. Bytes are counted in as many processes, and all counts must agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conformance.commands.compile_cache import compile_cache
from conformance.commands.output import progress, tell
from conformance.commands.run import PLAN_DEADLINE
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.figures import speed
from conformance.figures.bench_jobs import footprint
from conformance.figures.crossover import NOT_MEASURED, Point
from conformance.records.claims import PublishedClaim
from conformance.records.measurements import Ratio, Reason, Timing
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PLAN_CLAIMS, PlanRequest
from conformance.records.verdicts import Verdict
from conformance.run import child, environment, pool
from conformance.run.executor import Executor
from conformance.show import claims as page
from conformance.show import matrix
from conformance.show.claims import Replica

PROCESSES = 3  # a gain must show in each of them


@dataclass(frozen=True)
class _Counts:
    """Bytes of baseline and variant, as one process counted them."""

    baseline: int
    variant: int


Counted = Timing | _Counts | Reason


@dataclass(frozen=True)
class _Pair:
    """Baseline and variant at one size, as planned."""

    claim: PublishedClaim
    size: int
    baseline: PlannedCell
    variant: PlannedCell

    @property
    def is_absent(self) -> bool:
        return bool(self.baseline.skip or self.variant.skip)

    @property
    def jobs(self) -> list[str]:
        cells = f"{self.variant.id} against {self.baseline.id}"
        return [f"{self.claim.quantity} {cells} #{index}" for index in range(PROCESSES)]


def main(request: PlanRequest, write: Path | None) -> ExitCode:
    """Test the claims of the sources, or of the whole zoo, and write the page.

    Args:
        request: sources, seed and deadline.
        write: the file for the page; None: the page is printed.

    Returns:
        `RED` if a cell is red; `INTERRUPTED` after Ctrl-C; otherwise `OK`, also if a claim is not reproduced.

    Raises:
        UsageError: a source is unknown, a claim cannot be tested, or the file cannot be written.
    """
    if write is not None:
        _check_writable(write)
    plan = _planned(request)
    try:
        with compile_cache(plan) as cache, tempfile.TemporaryDirectory(prefix="conformance-claims-") as folder:
            environment.prepare_children(cache, compiles_for=plan.compiles_for)
            replicas, verdicts = _replicate(plan, Executor(plan, Path(folder)))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    text = page.page(matrix.header(plan), replicas)
    if write is None:
        tell(text.removesuffix("\n"))
    else:
        write.write_text(text, encoding="utf-8")
    return ExitCode.RED if any(verdict.red for verdict in verdicts.values()) else ExitCode.OK


def _check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before anything is measured. The only test is to open the file."""
    existed = path.exists()
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as problem:
        raise UsageError(f"--write {path}: {problem.strerror}") from problem
    if not existed:
        path.unlink()


def _planned(request: PlanRequest) -> Plan:
    ending = child.run(PLAN_CLAIMS, request, deadline=PLAN_DEADLINE, method="spawn")
    if ending.result is not None:
        return ending.result
    asked = " ".join(request.sources) or "the zoo"
    refused = ending.kind == "refused"
    raise UsageError(ending.message if refused else f"reading the claims of {asked}: {ending.message}")


def _replicate(plan: Plan, executor: Executor) -> tuple[list[Replica], dict[str, Verdict]]:
    """Judge all cells, then measure those that pass."""
    cells = {planned.cell: planned for planned in plan.cells}
    pairs = {
        claim: [
            _Pair(claim, size, cells[claim.baseline_cell(size)], cells[claim.variant_cell(size)])
            for size in claim.sizes
        ]
        for claim in plan.claims
    }
    present = [pair for these in pairs.values() for pair in these if not pair.is_absent]
    verdicts = _judge(present, executor)
    points = _measure(plan, present, verdicts, executor)
    replicas = [
        Replica(claim, is_absent=True)
        if any(pair.is_absent for pair in these)
        else Replica(claim, tuple(points[pair.jobs[0]] for pair in these))
        for claim, these in pairs.items()
    ]
    return replicas, verdicts


def _judge(pairs: Sequence[_Pair], executor: Executor) -> dict[str, Verdict]:
    cells = {planned.id: planned for pair in pairs for planned in (pair.baseline, pair.variant)}
    verdicts = {}
    for name, verdict in pool.carry_out({name: partial(executor.verdict, p) for name, p in cells.items()}):
        verdicts[name] = verdict
        progress(matrix.line(verdict))
    return verdicts


def _measure(
    plan: Plan, pairs: Sequence[_Pair], verdicts: Mapping[str, Verdict], executor: Executor
) -> dict[str, Point]:
    """The point of each pair, by its first job's name."""
    points: dict[str, Point] = {}
    pending: list[dict[str, Callable[[], Counted]]] = []
    owners = {job: pair for pair in pairs for job in pair.jobs}
    for pair in pairs:
        reason = _why_not(pair, verdicts)
        if reason:
            points[pair.jobs[0]] = Point(pair.size, None, reason)
        else:
            work = _time if pair.claim.is_timed else _count
            pending.append({job: partial(work, plan, pair, executor, index) for index, job in enumerate(pair.jobs)})
    results: dict[str, Counted] = {}
    for name, result in pool.measure(speed.in_batches(pending)):
        results[name] = result
        pair = owners[name]
        if results.keys() >= set(pair.jobs):
            point = _point(pair, [results[job] for job in pair.jobs])
            points[pair.jobs[0]] = point
            progress(f"◷ {pair.variant.id} {page.figure(point, pair.claim.factor)}")
    return points


def _why_not(pair: _Pair, verdicts: Mapping[str, Verdict]) -> Reason | None:
    """Why a pair is not measured; None if both cells pass."""
    for planned in (pair.baseline, pair.variant):
        if speed.why_not(planned.id, planned, verdicts):
            verdict = verdicts[planned.id]
            return Reason(verdict.status, f"{planned.id}, {verdict.text or verdict.reason}")
    return None


def _time(plan: Plan, pair: _Pair, executor: Executor, process_index: int) -> Timing | Reason:
    cells, figure = (pair.baseline, pair.variant), pair.claim.quantity
    return speed.time_once(plan, cells, executor, figure, process_index=process_index)


def _count(plan: Plan, pair: _Pair, _: Executor, __: int) -> _Counts | Reason:
    """Bytes of baseline and variant, or the reason why there are none."""
    counts = []
    for planned in (pair.baseline, pair.variant):
        found = footprint(plan, planned.cell)
        if isinstance(found, Reason):
            return Reason("not counted", f"{planned.id}, {found}")
        count = found.count(pair.claim.quantity)
        if not count:
            why = found.why_not(pair.claim.quantity) if count is None else "no bytes to compare with"
            return Reason("not counted", f"{planned.id}, {why}")
        counts.append(count)
    return _Counts(*counts)


def _point(pair: _Pair, results: Sequence[Counted]) -> Point:
    """The point of a size, from the results of all processes."""
    reason = next((result for result in results if isinstance(result, Reason)), None)
    if reason:
        return Point(pair.size, None, reason)
    timings = [result for result in results if isinstance(result, Timing)]
    if timings:
        found = speed.pooled_speed(pair.variant.id, timings)
        return Point(pair.size, found.ratios.get(pair.baseline.id), found.reason or NOT_MEASURED)
    counts = [(result.baseline, result.variant) for result in results if isinstance(result, _Counts)]
    if len(set(counts)) > 1:
        told = f"processes counted {', '.join(map(str, counts))}"
        return Point(pair.size, None, Reason("counts differ", told))
    gain = counts[0][0] / counts[0][1]
    return Point(pair.size, Ratio(gain, gain, gain, pairs=len(counts), processes=len(counts)))

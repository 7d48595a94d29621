"""Compares what models cost now with what they cost at another revision.

Only the counts decide. A cell is red if it has more graphs, graph breaks, recompiles, bytes or operations than before,
or if it passed and was counted then and is not now. Times are shown too, and never decide.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from conformance.against import checkout, timing
from conformance.against.checkout import Checkout
from conformance.against.timing import Comparable
from conformance.against.worker import Worker
from conformance.axes import MODES
from conformance.counted import counted
from conformance.errors import UsageError, WorkerError
from conformance.exit_codes import ExitCode
from conformance.figures.speed import default_figure
from conformance.records.cell import Cell, model_of
from conformance.records.measurements import FIGURES, Footprint
from conformance.records.plan import Plan
from conformance.records.revisions import MEASURE_REVISION, Account, AccountTask, TimedRevision
from conformance.records.tasks import PlanRequest
from conformance.run import environment
from conformance.run.executor import cell_task
from conformance.show.text import SIGNS, duration, printable, ratio_text, table, visible

COUNTERS = {
    "graphs": "graphs",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "saved": "saved bytes",
    "held": "held bytes",
    "peak_forward": "peak bytes, forward",
    "peak": "peak bytes",
    "flops.forward": "FLOPs, forward",
    "flops.both": "FLOPs",
}
BETTER, WORSE = "✓ less", "✗ more"
LEGEND = """
Times of {figures}, compared with {then}. They never decide.
{signs}.
"""


@dataclass(frozen=True)
class Difference:
    """A count that differs from before.

    Attributes:
        cell: id of the cell.
        counter: a key of `COUNTERS`.
        then, now: the counts; `now` is None if it could not be taken.
        text: the reason why it could not be taken now; "" if it was.
    """

    cell: str
    counter: str
    then: int
    now: int | None
    text: str = ""

    @property
    def worse(self) -> bool:
        """Whether the count is more than before, or could not be taken now."""
        return self.now is None or self.now > self.then


def compare(request: PlanRequest, revision: str, *, times: bool = True) -> ExitCode:
    """Compare the sources of a request with another revision of their repository, and print what differs.

    Args:
        request: models or folders of the zoo, or files, with axes and seed.
        revision: the other revision, in the repository of the sources.
        times: also time the cells that pass at both.

    Returns:
        `RED` if a count is worse, or a cell was comparable then and is not now; `INTERRUPTED` after Ctrl-C; otherwise
        `OK`.

    Raises:
        UsageError: the sources cannot be checked out, planned or judged at one of the revisions.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-against-") as folder:
            new = checkout.working_tree(request.sources)
            old = checkout.at_revision(new, revision, Path(folder) / "then")
            print(visible(f"against {revision} ({old.name})"), flush=True)  # noqa: T201 -- this is the interface
            return _Comparison(old, new, request, Path(folder)).report(times=times)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


class _Comparison:
    """Both revisions, judged and counted."""

    def __init__(self, old: Checkout, new: Checkout, request: PlanRequest, folder: Path) -> None:
        self._name = old.name
        self._start: dict[str, Callable[[], Worker]] = {}
        with contextlib.ExitStack() as stack:
            new_worker = stack.enter_context(self._at_work("new", new, request, folder))
            old_worker = stack.enter_context(self._at_work("old", old, request, folder))
            self._new = _account("", new_worker)  # errors of the current sources are reported first
            self._old = _account(f"{old.name}: ", old_worker)
        for source, text in self._new.planned.unknown.items():
            if source in self._old.planned.unknown:
                raise UsageError(text)

    @contextlib.contextmanager
    def _at_work(self, key: str, side: Checkout, request: PlanRequest, folder: Path) -> Iterator[Worker]:
        """A worker that judges and counts its revision."""
        asked = [MODES[name] for name in request.modes or MODES if name in MODES]
        compiles = len(asked) < len(request.modes) or any(mode.compiles for mode in asked)
        devices = ("cpu",) if compiles else ()
        variables = environment.inherited(folder / f"cache-{key}", compiles_for=devices)  # a cache for each revision
        self._start[key] = partial(Worker, side.path, variables, request.deadline)
        with Worker(side.path, variables) as worker:
            task = AccountTask(replace(request, sources=side.sources), str(folder / f"references-{key}"))
            worker.send(MEASURE_REVISION, task)
            yield worker

    def report(self, *, times: bool) -> ExitCode:
        """Print everything; returns the exit code."""
        lost, notes = self._without_comparison()
        cells = self._comparable()
        differences = [d for name in cells for d in self._differences(name)]
        print(f"{counted(len(cells), 'cell')} compared, {counted(len(differences), 'different counter')}")  # noqa: T201
        parts = [self._counters(differences), "\n".join(map(visible, [*lost, *notes]))]
        print(printable("".join(f"\n{part}\n" for part in parts if part)), end="", flush=True)  # noqa: T201
        if times and cells:
            print(printable(f"\n{self._times(cells)}"))  # noqa: T201
        return ExitCode.RED if lost or any(d.worse for d in differences) else ExitCode.OK

    def _comparable(self) -> list[str]:
        """The cells that pass at both revisions, of models whose first case is the same."""
        then, now = self._old.planned.first_cases, self._new.planned.first_cases
        both = [name for name in self._new.measured if name in self._old.measured]
        return [name for name in both if now[model_of(name)] == then[model_of(name)]]

    def _without_comparison(self) -> tuple[list[str], list[str]]:
        """Why cells that were comparable no longer are, and why others are not compared."""
        then, now = self._old.planned.first_cases, self._new.planned.first_cases
        lost = [f"✗ {model}: gone" for model in then if model not in now]
        lost += [
            f"✗ {model}: its first case was {then[model]}, now it is {now[model]}"
            for model in now
            if model in then and then[model] != now[model]
        ]
        notes = [f"· {model}: new" for model in now if model not in then]
        for name, verdict in self._new.verdicts.items():
            before = self._old.verdicts.get(name)
            if before is None or verdict.status == "SKIPPED":
                continue
            if name in self._old.measured and name not in self._new.measured:
                lost.append(f"✗ {name}: passed, now {verdict.status}  {verdict.text}")
            elif name not in self._old.measured:
                notes.append(f"· {name}: was {before.status}, now {verdict.status}; not compared")
        return lost, notes

    def _differences(self, name: str) -> Iterator[Difference]:
        then, now = (side.measured[name].footprint for side in (self._old, self._new))
        if not isinstance(then, Footprint):
            return
        for counter in COUNTERS:
            before = then.count(counter)
            after = now.count(counter) if isinstance(now, Footprint) else None
            if before is not None and before != after:
                why = now.why_not(counter) if isinstance(now, Footprint) else now
                yield Difference(name, counter, before, after, "" if after is not None else str(why))

    def _counters(self, differences: Sequence[Difference]) -> str:
        rows = []
        for d in sorted(differences, key=lambda d: not d.worse):
            now = f"{d.now:,}" if d.now is not None else f"not counted: {visible(d.text)}"
            rows.append([d.cell, COUNTERS[d.counter], f"{d.then:,}", now, WORSE if d.worse else BETTER])
        return table(rows, ["cell", "counter", self._name, "now", ""])

    def _times(self, cells: Sequence[str]) -> str:
        speeds = [
            speed
            for comparable in self._groups(cells)
            for speed in timing.time_revisions(comparable, self._start["old"], self._start["new"])
        ]
        rows = []
        for speed in speeds:
            if speed.seconds is None:
                rows.append([speed.cell, "", visible(str(speed.reason))])
            else:
                rows.append([speed.cell, duration(speed.seconds), ratio_text(speed.ratios[timing.OLD])])
        figures = ", or ".join(FIGURES[f] for f in dict.fromkeys(s.figure for s in speeds))
        legend = LEGEND.strip().format(figures=figures, then=self._name, signs=SIGNS)
        return f"{table(rows, ['cell', 'now', f'compared with {self._name}'])}\n\n{legend}"

    def _groups(self, cells: Sequence[str]) -> Iterator[Comparable]:
        """One for each model, precision and device, because TorchScript keeps the first precision of a process."""
        planned = {p.id: p.cell for p in _plan(self._new).cells}
        groups: dict[tuple[str, str, str], list[str]] = {}
        for name in cells:
            cell = planned[name]
            groups.setdefault((cell.model, cell.precision, cell.device), []).append(name)
        for (model, _, _), names in groups.items():
            now, then = (_plan(side).figures[model] for side in (self._new, self._old))
            figure = default_figure([f for f in now if f in then] or now)
            yield Comparable(_timed(self._old, names, figure), _timed(self._new, names, figure))


def _plan(account: Account) -> Plan:
    """The plan of a revision that has some of the sources."""
    assert account.planned.plan is not None
    return account.planned.plan


def _account(whose: str, worker: Worker) -> Account:
    """The result of a worker.

    Raises:
        UsageError: the worker cannot do its task.
    """
    try:
        return worker.receive(MEASURE_REVISION)
    except (UsageError, WorkerError) as problem:
        raise UsageError(f"{whose}{problem}") from None


def _timed(account: Account, names: Sequence[str], figure: str) -> TimedRevision:
    """The task that tells a worker of a revision what to time."""
    plan = _plan(account)
    wanted: Mapping[str, Cell] = {p.id: p.cell for p in plan.cells if p.id in names}
    expect = {p.id: p.expect for p in plan.cells}
    tasks = [
        cell_task(plan, cell, Path(account.measured[name].reference), expect[name]) for name, cell in wanted.items()
    ]
    return TimedRevision(tuple(tasks), figure)

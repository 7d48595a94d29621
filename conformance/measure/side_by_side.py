"""Child process: times cells side by side; the first one is the baseline.

Two controls test the meter itself; see `figures.meter`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.cell.session import open_task
from conformance.errors import NotMeasuredError, TimedCallError, name_of
from conformance.evaluate.error_text import one_line
from conformance.figures import meter
from conformance.figures.meter import A_A_CONTROL, SLOWER_CONTROL, Clock, HostClock, Rounds, Sample, TimedCall
from conformance.measure.timed_cell import TimedCell
from conformance.oracle.reference import CaseReference
from conformance.process.child_side import ChildProcess, keep_freed_memory
from conformance.records.measurements import CellTiming, Ratio, Reason, Timing
from conformance.records.tasks import CellTask, TimingTask
from zoo import internals

NO_REASON = Reason("reason unknown")
EXTRA_WORK = 0.1
TURNS, SLEEP_CYCLES = 10_000, 1_000_000


def observe(task: TimingTask, process: ChildProcess) -> Timing:
    """Time the cells of a task, alone on the machine. A cell that cannot be timed gets a reason."""
    keep_freed_memory()  # new pages can cost as much as the call
    measurement = _SideBySide(task, process)
    try:
        measurement.run()
    except TimedCallError as problem:
        measurement.refuse(_reason(problem.problem))
    except BaseException as problem:  # noqa: BLE001 -- the baseline may raise anything
        measurement.refuse(_reason(problem))
    return measurement.result()


class _SideBySide:
    """One measurement, and the result that it fills."""

    def __init__(self, task: TimingTask, process: ChildProcess) -> None:
        self._task = task
        self._process = process
        self._timed: dict[str, TimedCell] = {}
        self._references: dict[tuple[str, str], dict[str, CaseReference]] = {}
        self._base = task.cells[0].cell.id
        self._found = {cell.cell.id: CellTiming(reason=NO_REASON) for cell in task.cells}
        self._controls: dict[str, Ratio] = {}
        self._samples: dict[str, tuple[tuple[int, int, int], ...]] = {}

    def refuse(self, reason: Reason, names: Iterable[str] | None = None) -> None:
        """Note why some cells have no figure; None for all."""
        for name in self._found if names is None else names:
            self._found[name] = CellTiming(reason=reason)

    def result(self) -> Timing:
        """Everything that was found."""
        return Timing(self._task.figure, self._found, self._controls, self._process.seconds, self._samples)

    def run(self) -> None:
        """Prepare while other cells may run, then measure alone on the machine."""
        process, device = self._process, self._task.cells[0].cell.device
        with process.shared(), process.phase("prepare"):
            base, *controls = self._prepare_all()
        torch.set_grad_enabled(self._task.figure != "forward")
        with process.alone():
            with process.phase("measure"):
                rounds = self._measure(clock_for(device), base, controls, device)
            with process.phase("judge"):
                self._conclude(rounds)

    def _prepare_all(self) -> list[TimedCall]:
        """The baseline and its controls, which are copies, since calls that share data find it in the cache."""
        first, *others = self._task.cells
        with torch.set_grad_enabled(self._task.figure != "forward"):
            base, *controls = (self._timed_cell(first) for _ in range(3))
            self._timed[self._base] = base
            for cell in others:
                with self._reasons(cell.cell.id):
                    self._timed[cell.cell.id] = self._timed_cell(cell)
        for name, control in zip((A_A_CONTROL, SLOWER_CONTROL), controls, strict=True):
            control.call.name = name
        return [cell.call for cell in (base, *controls)]

    def _timed_cell(self, task: CellTask) -> TimedCell:
        """A cell ready to be timed; cells of one model and precision share its reference."""
        place = task.reference, task.cell.precision
        known = self._references.get(place)
        session = open_task(task if known is None else replace(task, reference=""), self._process)
        session.references = self._references.setdefault(place, session.references)
        return TimedCell(session, self._task.figure)

    @contextlib.contextmanager
    def _reasons(self, name: str) -> Iterator[None]:
        """A context that notes an error as the reason of one cell, so that the others are still measured."""
        try:
            yield
        except BaseException as problem:  # noqa: BLE001 -- the mode may raise anything
            self.refuse(_reason(problem), [name])

    def _measure(self, clock: Clock, base: TimedCall, controls: list[TimedCall], device: str) -> Rounds:
        ready = [base, *controls]
        for call in ready:
            meter.warm_up(call, clock)
        slow_down(controls[-1], device)
        for name, cell in self._timed.items():
            if name != self._base:
                with self._reasons(name):
                    meter.warm_up(cell.call, clock)
                    ready.append(cell.call)
        with no_recompilation():
            while True:
                try:
                    return self._rounds(ready, clock)
                except TimedCallError as problem:
                    if problem.call in (self._base, A_A_CONTROL, SLOWER_CONTROL):
                        raise
                    self.refuse(_reason(problem.problem), [problem.call])
                    ready = [call for call in ready if call.name != problem.call]

    def _rounds(self, ready: list[TimedCall], clock: Clock) -> Rounds:
        def keep(name: str, result: Any) -> None:
            if name in self._timed:
                self._timed[name].keep(result)

        return meter.measure(ready, clock, seed=self._task.process_index, budget=self._task.budget, on_result=keep)

    def _conclude(self, rounds: Rounds) -> None:
        right = [name for name in self._timed if name in rounds.samples and self._is_right(name)]
        try:
            for control in (A_A_CONTROL, SLOWER_CONTROL):
                self._controls[control] = rounds.ratio(self._base, control)
            meter.check_controls(self._controls[A_A_CONTROL], self._controls[SLOWER_CONTROL])
        except NotMeasuredError as problem:  # a busy machine hides no wrong result
            self.refuse(_reason(problem), right)
            right = []
        for name in right:
            with self._reasons(name):
                self._found[name] = self._figures(rounds, name)
        if self._task.keep_samples:
            self._samples = {
                name: tuple((round(s.ns), round(s.host_ns), round(s.delay_ns)) for s in taken)
                for name, taken in rounds.samples.items()
            }

    def _is_right(self, name: str) -> bool:
        """Whether the timed calls of a cell computed what they should. If not, that is the reason."""
        with self._reasons(name):
            wrong = self._timed[name].wrong_result()
            if not wrong:
                return True
            self.refuse(Reason("wrong result in a timed call", wrong), [name])
        return False

    def _figures(self, rounds: Rounds, name: str) -> CellTiming:
        timed = self._timed[name]
        eager = replace(timed.session.cell, mode="eager").id
        beside = [b for b in dict.fromkeys((self._base, eager)) if b != name and b in rounds.samples]
        return CellTiming(rounds.seconds(name), timed.call.warm_calls, {b: rounds.ratio(b, name) for b in beside})


def _reason(problem: BaseException) -> Reason:
    """Why there is no figure."""
    if isinstance(problem, NotMeasuredError):
        return Reason(problem.short, problem.detail)
    return Reason(name_of(problem), one_line(problem))


class DeviceClock:
    """Measures the time between two CUDA events, and the wall time until the device has finished.

    The L2 cache is flushed before each call.
    """

    def __init__(self, device: str) -> None:
        self._host = HostClock()
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 * 2**20)
        self._flush = torch.empty(2 * size, dtype=torch.int8, device=device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._end.record()  # the first record creates the event, which must not happen in the measured time

    def sample(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """Time one call; returns the sample and the result of the call."""
        self._flush.zero_()

        def until_done() -> Any:
            self._start.record()
            result = call()
            self._end.record()
            torch.cuda.synchronize()  # the whole device, so that no stream still works in the next sample
            return result

        torch.cuda.synchronize()
        seen, result = self._host.sample(until_done)
        return Sample(self._start.elapsed_time(self._end) * 1e6, seen.host_ns, seen.delay_ns), result


def clock_for(device: str) -> Clock:
    """The clock of a device type."""
    return HostClock() if device == "cpu" else DeviceClock(device)


def slow_down(timed: TimedCall, device: str) -> None:
    """Add other work after each run of a timed call, which tests the meter: a tenth of the time of its quickest run."""
    call, extra = timed.call, EXTRA_WORK * timed.quickest
    if device == "cuda":
        of_known = _quickest(DeviceClock(device), partial(internals.sleep_on_device, SLEEP_CYCLES))
        add = partial(internals.sleep_on_device, round(extra * SLEEP_CYCLES / of_known))  # the host does not see it
    else:
        of_known = _quickest(HostClock(), partial(_turn, TURNS))
        add = partial(_turn, max(1, round(extra * TURNS / of_known)))

    def longer() -> Any:
        result = call()
        add()
        return result

    timed.call = longer


def _quickest(clock: Clock, work: Callable[[], None]) -> float:
    return min(clock.sample(work)[0].ns for _ in range(11))


def _turn(turns: int) -> None:
    for _ in range(turns):
        pass


@contextlib.contextmanager
def no_recompilation() -> Iterator[None]:
    """A context in which a call that would compile anew raises an error (from torch 2.6; before, nothing happens)."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    with contextlib.nullcontext() if set_stance is None else set_stance("fail_on_recompile"):
        yield

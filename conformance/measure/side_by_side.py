"""Child process: times cells side by side; the first one is the baseline.

One timed call of each, drawn at random, is checked. Two controls test the meter itself; see `figures.meter`.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.cell import policy
from conformance.cell.session import CellSession, open_task
from conformance.errors import NotMeasuredError, TimedCallError, name_of
from conformance.evaluate import containers, error_text, evaluation, inputs, process_state, weights
from conformance.figures import meter
from conformance.figures.meter import A_A_CONTROL, SLOWER_CONTROL, Clock, HostClock, Rounds, Sample, TimedCall
from conformance.measure.costs import roots_of
from conformance.oracle.reference import CaseReference
from conformance.process import memory
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Observation
from conformance.records.measurements import CellTiming, Ratio, Reason, Timing
from conformance.records.tasks import CellTask, TimingTask
from conformance.verdict import judge
from zoo import internals
from zoo.training.step import Step, train_step

LEARNING_RATE = 1e-6  # the arithmetic of a step without its effect: the weights hardly move
LOSS_SCALE = 2.0**10  # no step is skipped at first, as some are with torch's default of 2¹⁶


class TimedCell:
    """A cell's callable on the first case, called and proven once; `call` is the call to time.

    Args:
        session: the session of the cell, with its references.
        figure: "forward": forward alone, for which the caller switches gradients off; "gradient": forward and
            backward; "step": forward and backward with loss and optimiser; "fit": the spec's whole training.

    Raises:
        NotMeasuredError: the model has no such figure, or its calls could not be checked.
        Whatever the mode or the model raises.
    """

    def __init__(self, session: CellSession, figure: str) -> None:
        self.session, self._figure = session, figure
        self._random, self._seen, self._kept = random.Random(session.seed), 0, None  # noqa: S311 -- no secret
        spec = session.spec
        policy.switch_tf32(session.precision)
        if (figure == "fit") != (spec.fit is not None):
            raise NotMeasuredError(f"no {figure}", f"{spec.name} is {'a' if spec.fit else 'no'} training")
        eager = session.build()
        made = session.prepare()
        self._owner = made.parameters_of
        self._state = weights.state_of(self._owner)
        asked = session.question(spec.cases[0], eager)
        # there is no figure of second derivatives or transforms, so none are taken
        asked = replace(asked, second=False, stacked=None, forward_mode=False)
        self._question = replace(asked, differentiate=asked.differentiate and figure != "forward")
        with policy.draw_as_the_oracle(spec, session.precision) as drew:
            for _ in range(1 + session.mode.warm_calls):
                evaluation.evaluate(made.call, self._owner, self._question)
                self._restore()
        if drew:
            other = "its timed calls draw other numbers than the oracle and cannot be checked"
            raise NotMeasuredError("other draws", other)
        made.proof()
        self._baseline = None if session.is_eager else session.baseline(eager, self._question)
        self._call, self._given = made.timed_call, inputs.fresh(self._question.call)
        self._leaves = {n: t for n, t in evaluation.leaves_of(self._owner, self._question).items() if t.requires_grad}
        figures = {"forward": self._forward, "gradient": self._gradient, "step": self._step, "fit": self._fit}
        self.call = TimedCall(session.cell.id, figures[figure](), self._before())

    def _restore(self) -> None:
        weights.reset(self._owner, self._state)
        inputs.restore(self._question.call, self._question.pristine)

    def _before(self) -> Callable[[], None] | None:
        """A function that restores the state before each sample; None if a call changes no state."""
        put_back = self._put_back()
        if self.session.cell.device == "cpu":
            return put_back

        def switch_then_call() -> None:
            policy.switch_tf32(self.session.precision)  # another cell of this process may have another precision
            if put_back is not None:
                put_back()

        return switch_then_call

    def _put_back(self) -> Callable[[], None] | None:
        if self._figure == "fit":
            return self._restore
        has_buffers = isinstance(self._owner, torch.nn.Module) and any(True for _ in self._owner.buffers())
        draws = process_state.DRAWS in self._question.changes_state
        contained = inputs.has_containers(self._question.call)
        if not has_buffers and not self._question.mutates and not draws and not contained:
            return None
        parameters = weights.parameters_of(self._owner)
        written = [name for name in self._question.mutates if name in parameters]

        def put_back() -> None:
            process_state.seed_draws(self._question.changes_state, self._owner)
            weights.reset_buffers(self._owner, self._state)
            for name in written:
                parameters[name].data.copy_(self._state[name])  # hidden from autograd, as buffers are
            if self._question.mutates:
                inputs.restore(self._question.call, self._question.pristine)
            if contained:
                self._given = inputs.fresh(self._question.call)

        return put_back

    def _inner_call(self) -> Any:
        return self._call(*self._given.args, **self._given.kwargs)

    def _forward(self) -> Callable[[], Any]:
        """Forward, with the entry into autocast, because every call of the model pays for that too."""
        call = self._inner_call
        if not self.session.precision.autocast:
            return call

        def under_autocast() -> Any:
            with evaluation.autocast(self._question):
                return call()

        return under_autocast

    def _gradient(self) -> Callable[[], Any]:
        forward = self._forward()
        roots, cotangents = self._cotangents(forward())
        leaves = list(self._leaves.values())
        if not leaves:
            raise NotMeasuredError("no gradient", "no input and no parameter takes one")

        def forward_and_backward() -> Any:
            returned = forward()
            return returned, torch.autograd.grad(roots(returned), leaves, cotangents, allow_unused=True)

        return forward_and_backward

    def _cotangents(self, returned: Any) -> tuple[Callable[[Any], list[torch.Tensor]], list[torch.Tensor]]:
        """A function that picks the outputs to differentiate, and a cotangent for each."""
        named = roots_of(returned)
        if not named:
            raise NotMeasuredError("no gradient", "no output takes one")
        cotangents = [inputs.cotangent(n, t, self._question.seed) * self._question.scale for n, t in named.items()]
        if isinstance(returned, torch.Tensor):
            return lambda tensor: [tensor], cotangents
        return lambda outputs: list(roots_of(outputs).values()), cotangents

    def _step(self) -> Callable[[], Step]:
        parameters = list(self._owner.parameters()) if isinstance(self._owner, torch.nn.Module) else []
        if not parameters:
            raise NotMeasuredError("no step", "there are no parameters to train")
        roots, cotangents = self._cotangents(self._forward()())
        weights = [c.float() / c.numel() for c in cotangents]
        optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
        device = self.session.cell.device
        scaler = torch.amp.GradScaler(device, init_scale=LOSS_SCALE, enabled=self.session.precision.name == "amp_fp16")
        call = self._inner_call

        def loss(returned: Any, _: torch.Tensor) -> torch.Tensor:
            return torch.stack([(t * w).sum() for t, w in zip(roots(returned), weights, strict=True)]).sum()

        def model(_: torch.Tensor) -> Any:
            return call()

        nothing = torch.empty(0, device=device)
        precision = self.session.precision.for_training
        return partial(train_step, model, loss, (nothing, nothing), optimizer, precision, scaler)

    def _fit(self) -> Callable[[], Any]:
        fit = self.session.spec.fit
        assert fit is not None
        precision = self.session.precision.for_training
        return partial(fit, self._call, self._owner, precision, *self._question.call.args)

    def keep(self, result: Any) -> None:
        """Offer the result of a timed call. One of all results is kept, each with the same probability."""
        self._seen += 1
        if self._figure != "step" and self._random.random() * self._seen < 1:
            self._kept = internals.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)

    def wrong_result(self) -> str:
        """What is wrong with the kept result; "" if nothing is, or none was kept."""
        if self._kept is None:
            return ""
        session = self.session
        case = session.spec.cases[0]
        known = session.known(case)
        returned, gradients = self._kept if self._figure == "gradient" else (self._kept, ())
        outputs = containers.tensors_of(returned, device=session.cell.device)
        found = evaluation.Evaluation(evaluation.name_tensors("output", outputs), known.requires_grad)
        for name, gradient in zip(self._leaves if gradients else (), gradients, strict=True):
            leaf = None if gradient is None else inputs.dense(gradient) / self._question.scale
            found.tensors |= evaluation.name_tensors("gradient", {name: leaf})
        timed = {name: tensor for name, tensor in known.tensors.items() if name in found.tensors}
        known = replace(known, tensors=timed)
        seen = tuple(session.compared(case, known, self._question, found, found, self._baseline, drawn={}))
        verdict = judge(session.cell.id, Observation("finished", discrepancies=seen), session.expect)
        return verdict.text if verdict.status == "FAIL" else ""


# Times the prepared cells.

NO_REASON = Reason("reason unknown")
EXTRA_WORK = 0.1
TURNS, SLEEP_CYCLES = 10_000, 1_000_000


def observe(task: TimingTask, process: ChildProcess) -> Timing:
    """Time the cells of a task, alone on the machine. A cell that cannot be timed gets a reason."""
    memory.keep_freed()  # new pages can cost as much as the call
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
    return Reason(name_of(problem), error_text.one_line(problem))


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

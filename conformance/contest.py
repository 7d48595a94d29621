"""What the child process of a measurement does: prepares the members of one contest and times them.

A contest is a list of cells, the baseline first, of which one figure is taken. Two more contestants test the meter
itself: a second copy of the baseline, which must come out the same, and the baseline with ten percent more work,
which must come out slower. Where either does not, no figure of the contest is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from conformance import isolation, machine, reference, timing
from conformance.cell import Phases, Run, set_policy
from conformance.entrant import Entrant
from conformance.failures import one_line
from conformance.interval import FASTER, SLOWER, Ratio
from conformance.records import Cell
from conformance.reference import CaseReference
from conformance.sources import Home
from conformance.timing import CallError, Clock, Contestant, NotMeasuredError, Rounds

TWIN, BURDENED = "the baseline again", "the baseline and 10 % more work"
EXTRA_WORK = 0.1
TURNS, SLEEP_CYCLES = 10_000, 1_000_000


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: time task["members"], of which the first is the baseline.

    Args:
        task: "members" (each with "cell", "home", "reference" and "expect"), "homes", "figure", "seed", "lot" (of
            the order of calls), "budget" (seconds of sampling a member may take), "keep" (whether to return every
            sample).
        enter_phase: told where the process is.

    Returns: "figure", "controls" by name, and "members" by cell id: "seconds" of a call, "warm_calls",
        "ratios" by baseline, or the "reason" why there is no figure.
    """
    contest = _Contest(task, Phases(enter_phase))
    try:
        contest.run()
    except NotMeasuredError as problem:
        contest.refuse(str(problem))
    except Exception as problem:  # noqa: BLE001 -- the baseline may raise anything
        contest.refuse(f"{type(problem).__name__}: {one_line(problem)}")
    return contest.report


class _Contest:
    """One contest, and the report it fills."""

    def __init__(self, task: dict[str, Any], clock: Phases) -> None:
        self._task = task
        self._phases = clock
        self._entrants: dict[str, Entrant] = {}
        self._references: dict[str, dict[str, CaseReference]] = {}
        names = [Cell(**member["cell"]).id for member in task["members"]]
        self._base = names[0]
        self.report: dict[str, Any] = {
            "figure": task["figure"],
            "controls": {},
            "members": {name: {} for name in names},
        }

    def refuse(self, reason: str, *names: str) -> None:
        """Say why members, or all, have no figure."""
        for name in names or self.report["members"]:
            self.report["members"][name] = {"reason": reason}

    def run(self) -> None:
        with self._phases.phase("import"):
            set_policy()
            for home in self._task["homes"]:
                Home(**home).load()
        self._phases.enter(isolation.WAITING)
        with machine.shared(), self._phases.phase("prepare"):
            base, *controls = self._prepare_all()
        torch.set_grad_enabled(self.report["figure"] != "forward")
        self._phases.enter(isolation.WAITING)
        with machine.alone():
            with self._phases.phase("measure"):
                clock = timing.clock_for(self._task["members"][0]["cell"]["device"])
                rounds = self._measure(clock, base, controls)
            with self._phases.phase("judge"):
                self._tell(rounds)
        self.report["seconds"] = self._phases.seconds

    def _prepare_all(self) -> list[Contestant]:
        """The baseline and its controls: copies, since what two share stays in the cache for both."""
        first, *others = self._task["members"]
        figure = self._task["figure"]
        with torch.set_grad_enabled(figure != "forward"):
            base, *controls = (self._entrant(first, figure) for _ in range(3))
            self._entrants[self._base] = base
            for member in others:
                name = Cell(**member["cell"]).id
                with self._reasons(name):
                    self._entrants[name] = self._entrant(member, figure)
        for name, control in zip((TWIN, BURDENED), controls, strict=True):
            control.contestant.name = name
        return [entrant.contestant for entrant in (base, *controls)]

    def _run(self, member: dict[str, Any]) -> Run:
        spec = Home(**member["home"]).spec(member["cell"]["model"])
        return Run(spec, Cell(**member["cell"]), self._task["seed"], self._phases)

    def _entrant(self, member: dict[str, Any], figure: str) -> Entrant:
        run = self._run(member)
        path = member["reference"]
        if path not in self._references:
            self._references[path] = reference.load(Path(path))
        return Entrant(run, self._references[path][run.spec.cases[0].name], member["expect"], figure)

    @contextlib.contextmanager
    def _reasons(self, name: str) -> Iterator[None]:
        """A member that cannot be measured leaves the others alone."""
        try:
            yield
        except NotMeasuredError as problem:
            self.refuse(str(problem), name)
        except Exception as problem:  # noqa: BLE001 -- the mode may raise anything
            self.refuse(f"{type(problem).__name__}: {one_line(problem)}", name)

    def _measure(self, clock: Clock, base: Contestant, controls: list[Contestant]) -> Rounds:
        ready = [base, *controls]
        for contestant in ready:
            timing.warm_up(contestant, clock)
        burden(controls[-1], self._task["members"][0]["cell"]["device"])
        for name, entrant in self._entrants.items():
            if name != self._base:
                with self._reasons(name):
                    timing.warm_up(entrant.contestant, clock)
                    ready.append(entrant.contestant)
        with no_recompilation():
            while True:
                try:
                    return self._rounds(ready, clock)
                except CallError as problem:
                    if problem.name in (self._base, TWIN, BURDENED):
                        raise
                    self.refuse(str(problem), problem.name)
                    ready = [contestant for contestant in ready if contestant.name != problem.name]

    def _rounds(self, ready: list[Contestant], clock: Clock) -> Rounds:
        def see(name: str, result: Any) -> None:
            if name in self._entrants:
                self._entrants[name].see(result)

        return timing.measure(ready, clock, seed=self._task["lot"], budget=self._task["budget"], see=see)

    def _tell(self, rounds: Rounds) -> None:
        for control in (TWIN, BURDENED):
            self.report["controls"][control] = rounds.ratio(self._base, control).to_json()
        check_controls(
            Ratio.from_json(self.report["controls"][TWIN]), Ratio.from_json(self.report["controls"][BURDENED])
        )
        for name in [n for n in self._entrants if n in rounds.samples]:
            with self._reasons(name):
                self.report["members"][name] = self._figures(rounds, name)
        if self._task["keep"]:
            self.report["samples"] = {
                name: [[round(s.ns), round(s.host_ns), round(s.delay_ns)] for s in taken]
                for name, taken in rounds.samples.items()
            }

    def _figures(self, rounds: Rounds, name: str) -> dict[str, Any]:
        entrant = self._entrants[name]
        objection = entrant.objection()
        if objection:
            raise NotMeasuredError(f"wrong result in a timed call: {objection}")
        run = entrant.run
        eager = Cell(run.cell.model, "eager", run.cell.precision, run.cell.device).id
        beside = [b for b in dict.fromkeys((self._base, eager)) if b != name and b in rounds.samples]
        return {
            "seconds": rounds.seconds(name),
            "warm_calls": entrant.contestant.warm_calls,
            "ratios": {b: rounds.ratio(b, name).to_json() for b in beside},
        }


def check_controls(twin: Ratio, burdened: Ratio) -> None:
    """The meter's own trial.

    Raises:
        NotMeasuredError: it saw a difference where there is none, or none where there is one.
    """
    if twin.verdict in (FASTER, SLOWER):
        raise NotMeasuredError(f"control failed: two copies of one model came out {twin.middle:.3g} apart")
    if burdened.verdict != SLOWER:
        seen = f"[{burdened.low:.3g}, {burdened.high:.3g}]"
        raise NotMeasuredError(f"too noisy: the meter could not see 10 % more work, {seen}")


def burden(contestant: Contestant, device: str) -> None:
    """Put a tenth of its time of other work behind a contestant's call."""
    call, extra = contestant.call, EXTRA_WORK * contestant.quickest
    if device == "cuda":
        cycles = round(extra * SLEEP_CYCLES / _quickest(timing.DeviceClock(device), _sleep))

        def slower() -> Any:
            result = call()
            torch.cuda._sleep(cycles)  # noqa: SLF001 -- work for the device, of which the host knows nothing
            return result

        contestant.call = slower
        return
    turns = range(max(1, round(extra * TURNS / _quickest(timing.HostClock(), _turn))))

    def longer() -> Any:
        result = call()
        for _ in turns:
            pass
        return result

    contestant.call = longer


def _quickest(clock: Clock, work: Callable[[], None]) -> float:
    return min(clock.sample(work)[0].ns for _ in range(11))


def _turn() -> None:
    for _ in range(TURNS):
        pass


def _sleep() -> None:
    torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001


@contextlib.contextmanager
def no_recompilation() -> Iterator[None]:
    """A timed call that would compile anew, or fall back to eager, raises (from torch 2.6)."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    with contextlib.nullcontext() if set_stance is None else set_stance("fail_on_recompile"):
        yield

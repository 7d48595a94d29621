"""Times cells at two revisions: each in a process of its own, one sample in turn, in an order drawn by lot.

The meter is that of `timing`, with the calls at the other end of a pipe. Its trial is that of a contest: a second
process of the older revision, which must come out the same, and the older one with a tenth more work, which must
come out slower. A process has a bias of its own that no interval shows, so all is done twice with fresh processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance import machine, speed
from conformance.delegate import Delegate, DelegateError
from conformance.records import Speed

OLD, TWIN, BURDENED, NEW = "then", "then again", "then, and 10 % more work", "now"
ALL = (OLD, TWIN, BURDENED, NEW)  # each in a process of its own: who is sampled more often would be the warmer
CHILD = "conformance.duelist"
CALLED, NO_FIGURE = "DelegateError: ", "NotMeasuredError: "  # what stands before a reason from the other end


@dataclass(frozen=True)
class Duel:
    """Cells of one model, precision and device that are green at both revisions.

    Attributes:
        figure: what is timed of each.
        cells: their ids.
        old, new: the task of a duelist of either revision, see `duelist.prepare`.
    """

    figure: str
    cells: tuple[str, ...]
    old: Mapping[str, Any]
    new: Mapping[str, Any]


def hold(duel: Duel, old: Callable[[], Delegate], new: Callable[[], Delegate]) -> list[Speed]:
    """How fast each cell is now, beside what it was; `old` and `new` start a process of that revision."""
    answers = [_Bout(duel, lot).fight(old, new) for lot in range(speed.PROCESSES)]
    return [speed.pooled(name, answers) for name in duel.cells]


class _Bout:
    """All cells of a duel, timed once."""

    def __init__(self, duel: Duel, lot: int) -> None:
        self._duel, self._lot = duel, lot
        self._delegates: dict[str, Delegate] = {}
        self._reasons: dict[str, str] = {}

    def fight(self, old: Callable[[], Delegate], new: Callable[[], Delegate]) -> dict[str, Any]:
        """Returns: "figure", and "members" by cell id, as in the answer of a contest."""
        found: dict[str, dict[str, Any]] = {}
        with contextlib.ExitStack() as stack:
            for who in ALL:
                self._delegates[who] = stack.enter_context(new() if who == NEW else old())
            with machine.shared():
                self._prepare()
            with machine.alone():
                for name in self._ready:
                    with self._fate_of(name):
                        self._warm_up(name)
                self._settle()
                for name in self._ready:
                    with self._fate_of(name):
                        found[name] = self._measure(name)
        refused = {name: {"reason": why} for name, why in self._reasons.items()}
        return {"figure": self._duel.figure, "members": {**found, **refused}}

    @property
    def _ready(self) -> list[str]:
        return [name for name in self._duel.cells if name not in self._reasons]

    @contextlib.contextmanager
    def _fate_of(self, name: str) -> Iterator[None]:
        """A cell that cannot be timed leaves the others alone."""
        from conformance.timing import NotMeasuredError  # noqa: PLC0415 -- and torch; `conformance` starts without

        try:
            yield
        except (DelegateError, NotMeasuredError) as problem:
            self._reasons[name] = str(problem).removeprefix(CALLED).removeprefix(NO_FIGURE)

    def _prepare(self) -> None:
        """Have every process prepare every cell, all processes at once."""
        for who, delegate in self._delegates.items():
            side = self._duel.new if who == NEW else self._duel.old
            delegate.tell(f"{CHILD}:prepare", side)
        for delegate in self._delegates.values():
            try:
                self._reasons |= delegate.answer()
            except DelegateError as problem:
                self._reasons |= dict.fromkeys(self._duel.cells, str(problem))

    def _ask(self, who: str, what: str, cell: str) -> Any:
        told = {"cell": cell, "burdened": who == BURDENED, "budget": speed.BUDGET}
        return self._delegates[who].ask(f"{CHILD}:{what}", told)

    def _warm_up(self, cell: str) -> None:
        for who in ALL:
            self._ask(who, "warm_up", cell)

    def _settle(self) -> None:
        for delegate in self._delegates.values():
            with contextlib.suppress(DelegateError):  # who has died is found out at the first sample
                delegate.ask(f"{CHILD}:settle")

    def _measure(self, cell: str) -> dict[str, Any]:
        """Time one cell; the figures are those of the newer revision."""
        from conformance.contest import check_controls  # noqa: PLC0415
        from conformance.timing import Contestant, NotMeasuredError, measure  # noqa: PLC0415

        contestants = [Contestant(who, partial(self._ask, who, "sample", cell)) for who in ALL]
        rounds = measure(contestants, _Relay(), seed=self._lot, budget=speed.BUDGET)
        check_controls(rounds.ratio(OLD, TWIN), rounds.ratio(OLD, BURDENED))
        for who in (OLD, NEW):
            objection = self._ask(who, "objection", cell)
            if objection:
                raise NotMeasuredError(f"wrong result in a timed call: {who}, {objection}")
        return {"seconds": rounds.seconds(NEW), "warm_calls": 0, "ratios": {OLD: rounds.ratio(OLD, NEW).to_json()}}


class _Relay:
    """A clock for calls that are timed where they happen, and return their sample."""

    def sample(self, call: Callable[[], list[float]]) -> tuple[Any, None]:
        from conformance.timing import Sample  # noqa: PLC0415

        return Sample(*call()), None

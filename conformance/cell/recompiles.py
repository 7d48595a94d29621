"""Counts what torch.compile compiles in each call, and rejects code that compiles again at every identical call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from conformance.records.observation import Discrepancy, Measure, TensorName
from zoo import internals

GATE = "recompile"
FURTHER_CALLS = 2  # a first call may create state that a guard reads, and a second call may still change it
LONGEST_REASON = 160

ResultT = TypeVar("ResultT")


class Recompiles:
    """Watches the identical calls of every case. Until torch.compile is used, it counts nothing and costs nothing."""

    def __init__(self) -> None:
        self._compiled: dict[str, list[int]] = {}  # by case, what each call compiled
        self._reasons: dict[str, str] = {}

    def watched(self, case: str, call: Callable[[], ResultT]) -> ResultT:
        """Make a call, and count what it compiles.

        Args:
            case: name of the case; all of its watched calls must be identical.
            call: makes the call from the same state as every other call of the case.
        """
        compiled, failures = compilations(), _guard_failures()
        returned = call()
        self._compiled.setdefault(case, []).append(compilations() - compiled)
        if self._compiled[case][-1]:
            self._reasons[case] = _new_reason(failures)
        return returned

    def settle(self, case: str, call: Callable[[], Any]) -> None:
        """Repeat the call while each compiles again, at most `FURTHER_CALLS` times. Most cases need no further call."""
        for _ in range(FURTHER_CALLS):
            if self._compiled[case][-1]:
                self.watched(case, call)

    def discrepancies(self) -> list[Discrepancy]:
        """One for each case whose last identical call compiled again."""
        found = []
        for case, compiled in self._compiled.items():
            if len(compiled) > 1 and compiled[-1]:
                again = [str(number) for number, count in enumerate(compiled, 1) if count and number > 1]
                calls = f"{', '.join(again[:-1])} and {again[-1]}" if len(again) > 1 else again[0]
                text = f"identical calls compiled again {sum(compiled[1:])} times, at calls {calls}"
                measure = Measure(GATE, float("inf"), 0.0, f"{text}{self._reasons[case]}")
                found.append(Discrepancy(case, TensorName("subject", "compiled code"), "absent", "", "", (measure,)))
        return found

    def facts(self) -> dict[str, int]:
        """The numbers of graphs, graph breaks and recompiles; nothing if nothing was compiled."""
        if not any(map(sum, self._compiled.values())):
            return {}
        counters = internals.dynamo_counters
        return {
            "graphs": counters["stats"]["unique_graphs"],
            "graph breaks": sum(counters["graph_break"].values()),
            "recompiles": sum(sum(compiled[1:]) for compiled in self._compiled.values()),
        }


def compilations() -> int:
    """How many times this process has compiled a piece of code with torch.compile."""
    by_frame, by_graph = internals.loaded("compilations"), internals.loaded("dynamo_counters")
    if by_frame is not None:
        return sum(by_frame.values())
    return int(by_graph["stats"]["unique_graphs"]) if by_graph is not None else 0


def _guard_failures() -> dict[Any, int]:
    """The number of guards that failed, by code object."""
    return {code: len(reasons) for code, reasons in (internals.loaded("guard_failures") or {}).items()}


def _new_reason(before: dict[Any, int]) -> str:
    """The first guard that failed since then, for the end of a message; "" if torch tells none."""
    for code, reasons in (internals.loaded("guard_failures") or {}).items():
        new = reasons[before.get(code, 0) :]
        if new:
            told = re.sub(r"^\d+/\d+: ", "", str(new[-1]).partition("\n")[0].partition("(HINT")[0])  # after its number
            return f"; failed guard of {code.co_name}: {' '.join(told.split())[:LONGEST_REASON].rstrip()}"
    return ""

"""Follows each cell and each probe through torch versions: since when it works, where it broke, where it was mended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from packaging.version import InvalidVersion, Version

from conformance.errors import UsageError
from conformance.records.cell import Cell
from conformance.records.plan import PlannedCell
from conformance.records.tasks import ProbeFinding, ProbeRun
from conformance.records.verdicts import STATUSES, Verdict
from conformance.store.summaries import Summary

WORKS, OTHER_DTYPE, DECLARED, RED = "works", "another dtype", "does not work", "red"
SHOWN, CORRECT, UNKNOWN = "shows", "correct", "not known"
StateT = TypeVar("StateT")
OF_PROBES = {"EXPECTED": SHOWN, "FAIL": SHOWN, "PASS": CORRECT, "STALE": CORRECT}


@dataclass(frozen=True)
class State:
    """How a cell is in one version.

    Attributes:
        kind: `WORKS`; `OTHER_DTYPE` or `DECLARED`, both as declared; or `RED`.
        status, short: the status of the verdict, and its few words.
        reason, link: the declared reason, or the text of a red verdict.
    """

    kind: str
    status: str
    short: str = ""
    reason: str = ""
    link: str = ""

    @property
    def works(self) -> bool:
        """Whether the cell computes what it should, apart from declared dtypes."""
        return self.kind in (WORKS, OTHER_DTYPE)


@dataclass(frozen=True)
class History:
    """One cell in several versions, the oldest first; a version that did not judge it is left out."""

    cell: Cell
    states: Mapping[str, State] = field(default_factory=dict)

    @property
    def since(self) -> str:
        """The first version in which it works; "" if there is none."""
        return next((version for version, state in self.states.items() if state.works), "")

    @property
    def broke(self) -> tuple[str, ...]:
        """The versions in which it does not work, and did in the one before."""
        return self._turns(lambda before, now: before and not now)

    @property
    def mended(self) -> tuple[str, ...]:
        """The versions in which it works again."""
        turned = self._turns(lambda before, now: now and not before)
        return tuple(version for version in turned if version != self.since)

    def _turns(self, turned: Callable[[bool, bool], bool]) -> tuple[str, ...]:
        known = list(self.states.items())
        return tuple(
            version for (_, before), (version, now) in itertools.pairwise(known) if turned(before.works, now.works)
        )


@dataclass(frozen=True)
class Fault:
    """One known fault of torch on one device, in several versions, the oldest first.

    Attributes:
        probe: the latest finding, which names the fault, its issue, and what to do instead.
        device: the device it was looked for on.
        states: `SHOWN`, `CORRECT`, or another status, by version.
    """

    probe: ProbeFinding
    device: str
    states: Mapping[str, str]


def version_of(torch: str) -> str:
    """The version of a torch without its build, such as "2.13.0" of "2.13.0+cpu".

    Raises:
        UsageError: it is no version.
    """
    try:
        return Version(torch).public
    except InvalidVersion:
        raise UsageError(f"torch {torch!r:.60} is no version, so it cannot be compared with others") from None


def minor_of(python: str) -> str:
    """The version of a Python without its patch, such as "3.11"."""
    return ".".join(python.split(".")[:2])


def is_judged(planned: PlannedCell, verdict: Verdict | None) -> bool:
    """Whether a verdict says anything of its model, at all its cases."""
    return verdict is not None and verdict.status not in ("SKIPPED", "NOTRUN") and not planned.left_out


def histories(runs: Sequence[Summary], earlier: Iterable[History] = ()) -> list[History]:
    """Each cell in all versions, in the earlier order, and then in the order in which the runs plan them.

    Args:
        runs: runs of one or several versions.
        earlier: further cells, or older states of the same ones, which count where no run judges them.

    Raises:
        UsageError: two runs of one version, with the same Python, have verdicts on the same cell, or with different
            Pythons they differ in one.
    """
    earlier = list(earlier)
    found: dict[Cell, dict[str, State]] = {old.cell: {} for old in earlier}
    judges: dict[tuple[str, str, str], Summary] = {}
    for run in runs:
        version, python = version_of(run.plan.environment.torch), minor_of(run.plan.environment.python)
        for planned in run.plan.own_cells:
            verdict = run.verdicts.get(planned.id)
            if verdict is None or not is_judged(planned, verdict):
                continue
            state = _state(verdict)
            twin = judges.setdefault((version, python, planned.id), run)
            if twin is not run:
                raise UsageError(f"{twin.folder} and {run.folder} both judge {planned.id} with torch {version}")
            other = found.setdefault(planned.cell, {}).setdefault(version, state)
            if other.kind != state.kind:
                raise UsageError(
                    f"{planned.id} with torch {version} depends on Python: {state.kind} with {python} in {run.folder}, "
                    f"{other.kind} with another"
                )
    for old in earlier:
        found[old.cell] = {**old.states, **found[old.cell]}
    return [History(cell, _rising(states)) for cell, states in found.items()]


def _rising(states: Mapping[str, StateT]) -> dict[str, StateT]:
    return {version: states[version] for version in sorted(states, key=Version)}


def _state(verdict: Verdict) -> State:
    if verdict.status == "PASS":
        return State(WORKS, verdict.status)
    if verdict.red:
        return State(RED, verdict.status, verdict.short, verdict.text)
    kind = OTHER_DTYPE if verdict.status == "EXPECTED" and verdict.short not in STATUSES else DECLARED
    return State(kind, verdict.status, verdict.short, verdict.reason, verdict.link)


def faults(found: Sequence[ProbeRun], earlier: Iterable[Fault] = ()) -> list[Fault]:
    """Each probe on each device in all versions, by name.

    Args:
        found: what the probes found in one or several versions.
        earlier: further faults, or older states of the same ones, which count where no probe ran.

    Raises:
        UsageError: one version was probed twice on a device.
    """
    states: dict[tuple[str, str], dict[str, str]] = {}
    latest: dict[tuple[str, str], ProbeFinding] = {}
    for run in sorted(found, key=lambda run: Version(version_of(run.environment.torch))):
        version = version_of(run.environment.torch)
        for finding in run.findings:
            key = (finding.probe, run.device)
            if version in states.setdefault(key, {}):
                raise UsageError(f"probe {finding.probe} was run twice with torch {version} on {run.device}")
            states[key][version] = OF_PROBES.get(finding.status, finding.status)
            latest[key] = finding
    for old in earlier:
        key = (old.probe.probe, old.device)
        states[key] = {**old.states, **states.get(key, {})}
        latest.setdefault(key, old.probe)
    return [Fault(latest[key], key[1], _rising(states[key])) for key in sorted(states)]

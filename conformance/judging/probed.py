"""Runs probes, and finds out whether the faults show on which some declared divergences hang."""

import tempfile
from collections.abc import Iterable, Mapping

from conformance.process import child
from conformance.process.child import Ending
from conformance.records import tasks
from conformance.records.cell import PROBED
from conformance.records.tasks import RUN_PROBE, ProbeSighting, ProbeTask
from zoo.expect import Expect

UNTOLD = "the probe {name} did not tell whether its fault shows on this machine, so nothing is declared by it: {why}"


def observe(name: str, device: str, deadline: float) -> Ending[ProbeSighting]:
    """Run one probe in a process of its own, with its own compile cache."""
    with tempfile.TemporaryDirectory(prefix="conformance-probe-", ignore_cleanup_errors=True) as cache:
        return child.run(RUN_PROBE, ProbeTask(f"{tasks.PACKAGE}.{name}", device, cache), deadline=deadline)


def outcome_of(ending: Ending[ProbeSighting]) -> tuple[str, str]:
    """How a probe ended, or what kind of sighting it was; and what it said."""
    result = ending.result
    return (result.kind, result.text) if result is not None else (ending.kind, ending.message)


def shows(symptom: str, kind: str, text: str) -> bool | None:
    """Whether a probe saw its fault, by what it told; None if it saw something else, or could not look."""
    if text == symptom and kind in ("saw", "crashed"):
        return True
    return False if kind == "unavailable" or (kind == "saw" and not text) else None


class Probed:
    """What probes show on this machine. Each runs once, when a cell first asks for it.

    Args:
        deadline: seconds that a probe may take.
        symptoms: what each returns where its fault shows, by its name.
    """

    def __init__(self, deadline: float, symptoms: Mapping[str, str]) -> None:
        self._deadline, self._symptoms = deadline, symptoms
        self._known: dict[tuple[str, str], tuple[bool | None, str]] = {}

    def facts(self, expected: Iterable[Expect], device: str) -> tuple[dict[str, bool], tuple[str, ...]]:
        """For the judge, whether each fault shows on which one of these divergences hangs; and remarks for the report.

        Raises:
            OSError: the system starts no process.
        """
        found: dict[str, bool] = {}
        remarks = []
        for one in expected:
            if one.probe:
                shown, why = self._find_out(one.probe, device)
                found[PROBED + one.probe] = bool(shown)
                remarks += [UNTOLD.format(name=one.probe, why=why)] if shown is None else []
        return found, tuple(remarks)

    def _find_out(self, probe: str, device: str) -> tuple[bool | None, str]:
        key = probe, device
        if key not in self._known:
            found = outcome_of(observe(probe, device, self._deadline))
            self._known[key] = shows(self._symptoms[probe], *found), ": ".join(filter(None, found))
        return self._known[key]

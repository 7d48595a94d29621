"""Tasks and results of the processes that read and run probes of known torch faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from conformance.records.limits import OneOf
from conformance.records.plan import Environment
from conformance.records.tasks import Target
from conformance.records.verdicts import STATUSES


@dataclass(frozen=True)
class ProbesRequest:
    """Read the probes of a package for a device.

    Attributes:
        package: dotted name of the package.
        device: device type, "cpu" or "cuda".
    """

    package: str
    device: str


@dataclass(frozen=True)
class SeenOn:
    """The torch versions that show a fault on one device; see `zoo.probe.Seen`.

    Attributes:
        torch: range of versions, such as ">=2.6,<2.15".
        checked: the versions on which the probe was run.
    """

    torch: str
    checked: tuple[str, ...]


@dataclass(frozen=True)
class ProbeInfo:
    """A probe, as data. `zoo.probe.Probe` explains the fields that are not listed.

    Attributes:
        seen: the versions that show the fault, by device type.
        concerns: whether the probe applies to the device that was asked for.
        declared: whether this torch should show the fault on that device; None if nothing is declared for the device.
        remedy: what to do instead.
    """

    name: str
    summary: str
    issue: str
    source: str
    symptom: str
    devices: tuple[str, ...]
    seen: Mapping[str, SeenOn]
    concerns: bool
    declared: bool | None
    remedy: str = ""

    @property
    def link(self) -> str:
        """The upstream issue, or the source if there is none."""
        return self.issue or self.source


@dataclass(frozen=True)
class ProbeList:
    """All probes of a package, and the environment of the process that read them."""

    probes: tuple[ProbeInfo, ...]
    environment: Environment


@dataclass(frozen=True)
class ProbeTask:
    """Run one probe.

    Attributes:
        module: dotted name of the probe's module.
        device: device type, "cpu" or "cuda".
        cache: path of the folder for its compile cache.
    """

    module: str
    device: str
    cache: str


@dataclass(frozen=True)
class ProbeSighting:
    """The result of running a probe.

    Attributes:
        kind: "saw", "raised" or "unavailable".
        text: for "saw" the symptom, or "" if torch is correct; otherwise the reason.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class ProbeFinding:
    """The result of a probe.

    Attributes:
        probe: name of the probe.
        status: a key of `STATUSES`: EXPECTED, PASS, STALE, FAIL, INCONCLUSIVE, ERROR, CRASH, TIMEOUT, UNSUPPORTED
            or SKIPPED.
        seen: the symptom, the error, how the process died, or why it was skipped; "" if torch is correct.
        link: address of the issue, or the source if there is none.
        summary, remedy: the risk in one line, and what to do instead.
    """

    probe: str
    status: Annotated[str, OneOf(tuple(STATUSES))]
    seen: str
    link: str
    summary: str = ""
    remedy: str = ""

    @property
    def red(self) -> bool:
        """Whether the declaration and this torch disagree."""
        return STATUSES[self.status].red


@dataclass(frozen=True)
class ProbeRun:
    """What the probes found in one torch on one device, as `conformance probes --write` stores it."""

    environment: Environment
    device: str
    findings: tuple[ProbeFinding, ...]


PACKAGE = "zoo.probes"
READ_PROBES = Target("conformance.plan.probes:read", ProbesRequest, ProbeList)
RUN_PROBE = Target("conformance.cell.observe:observe_probe", ProbeTask, ProbeSighting)

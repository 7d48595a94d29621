"""Tasks and results of the processes that read and run probes of known torch faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.records.tasks import Target


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

    @property
    def link(self) -> str:
        """The upstream issue, or the source if there is none."""
        return self.issue or self.source


@dataclass(frozen=True)
class ProbeList:
    """All probes of a package."""

    probes: tuple[ProbeInfo, ...]


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


READ_PROBES = Target("conformance.plan.probes:read", ProbesRequest, ProbeList)
RUN_PROBE = Target("conformance.cell.probe:observe", ProbeTask, ProbeSighting)

"""What is told and returned when probes of known torch faults are read and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.records.tasks import Target


@dataclass(frozen=True)
class ProbesRequest:
    """Read the probes of a package for a device."""

    package: str
    device: str


@dataclass(frozen=True)
class SeenOn:
    """On which torch a fault shows: a version range, and the versions that were run."""

    torch: str
    checked: tuple[str, ...]


@dataclass(frozen=True)
class ProbeInfo:
    """A probe, as data. `zoo.probe.Probe` explains the fields that are not listed.

    Attributes:
        seen: by device type.
        concerns: whether the probe is to be run on the device asked for.
        declared: whether this torch should show the fault there; None if nobody has looked.
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
    """Run the probe of a module on a device, with its compile cache in a folder."""

    module: str
    device: str
    cache: str


@dataclass(frozen=True)
class ProbeSighting:
    """What a probe came to: "saw" (text is the symptom or ""), "raised" or "unavailable" (text says why)."""

    kind: str
    text: str


READ_PROBES = Target("conformance.plan.probes:read", ProbesRequest, ProbeList)
RUN_PROBE = Target("conformance.cell.probe:observe", ProbeTask, ProbeSighting)

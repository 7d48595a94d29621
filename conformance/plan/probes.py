"""Child process: reads the probes of known torch faults as data."""

from __future__ import annotations

import torch

from conformance.plan import matrix
from conformance.records.probes import ProbeInfo, ProbeList, ProbesRequest, SeenOn
from conformance.run.child_side import ChildProcess
from zoo.probe import Probe, find


def read(task: ProbesRequest, process: ChildProcess) -> ProbeList:
    """Read the probes of a package, with what they declare for a device on this torch.

    Raises:
        UsageError: the device is absent.
    """
    process.enter("read")
    matrix.check_present(task.device)
    return ProbeList(tuple(_info(probe, task.device) for probe in find(task.package)))


def _info(probe: Probe, device: str) -> ProbeInfo:
    return ProbeInfo(
        name=probe.name,
        summary=probe.summary,
        issue=probe.issue,
        source=probe.source,
        symptom=probe.symptom,
        devices=probe.devices,
        seen={where: SeenOn(seen.torch, seen.checked) for where, seen in probe.seen.items()},
        concerns=probe.concerns(device),
        declared=probe.seen[device].shows_in(torch.__version__) if device in probe.seen else None,
    )

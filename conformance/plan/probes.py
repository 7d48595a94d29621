"""Child process: reads the probes of known torch faults as data."""

import importlib
import inspect

import torch

from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.tasks import ProbeInfo, ProbeList, ProbesRequest, SeenOn
from zoo.probe import Probe, find

INSTEAD = "Instead:"


def read(task: ProbesRequest, process: ChildProcess) -> ProbeList:
    """Read the probes of a package, with what they declare for a device on this torch.

    Raises:
        UsageError: the device is absent.
    """
    process.enter("read")
    matrix.check_present(task.device)
    infos = tuple(_info(probe, task.device, task.package) for probe in find(task.package))
    return ProbeList(infos, matrix.environment())


def _info(probe: Probe, device: str, package: str) -> ProbeInfo:
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
        remedy=_remedy(f"{package}.{probe.name}"),
    )


def _remedy(module: str) -> str:
    """What to do instead, as the top of a probe's file says it; "" if it does not."""
    paragraphs = (inspect.getdoc(importlib.import_module(module)) or "").split("\n\n")
    found = next((text for text in paragraphs if text.startswith(INSTEAD)), "")
    return " ".join(found.removeprefix(INSTEAD).split())

"""Draws the page docs/probes.md from the declarations of the probes; no probe is run for it."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.axes import DEVICES
from conformance.records.tasks import ProbeInfo

FOLDER = "zoo/probes"
HEADERS = ["probe", "at risk", "what is seen", "issue or source"]
INTRODUCTION = """# Probes

These are faults of torch that users of scripted, compiled or mixed-precision models meet. A few lines of plain torch
show each one. `conformance probes` looks for all of them in the installed torch, `conformance probes NAME` looks for
one, on the CPU or, with `--device=cuda`, on a GPU. The top of each file describes what a user sees and what to do
instead.

"Shows in" gives the torch versions that have the fault on that device. "Run with" lists the versions that were tried.
The versions between them and after the last one were not tried. An open range means that the last version tried has the
fault. Without an entry, the probe was never run on that device.
"""
UNSEEN = """
No probe was run on {device} yet. Nothing is declared there, and whatever a probe sees is INCONCLUSIVE.
"""


def page(probes: Sequence[ProbeInfo]) -> str:
    """The page in Markdown."""
    devices = [device for device in DEVICES if any(device in probe.seen for probe in probes)]
    headers = HEADERS + [f"{device.upper()}: {what}" for device in devices for what in ("shows in", "run with")]
    rows = [headers, ["---"] * len(headers), *(_row(probe, devices) for probe in probes)]
    unseen = "".join(UNSEEN.format(device=device.upper()) for device in DEVICES if device not in devices)
    return INTRODUCTION + unseen + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(probe: ProbeInfo, devices: Sequence[str]) -> list[str]:
    number = probe.issue.rpartition("/")[2]
    row = [
        f"[{probe.name}](../{FOLDER}/{probe.name}.py)",
        probe.summary,
        probe.symptom,
        f"[pytorch#{number}]({probe.issue})" if number else probe.source,
    ]
    for device in devices:
        seen = probe.seen.get(device)
        row += [f"`{seen.torch}`", ", ".join(seen.checked)] if seen else ["", ""]
    return row

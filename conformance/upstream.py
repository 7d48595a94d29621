"""Runs the probes of known torch faults, each in a fresh process, and says which of them this torch has.

A fault that is declared and shows is EXPECTED; one that shows undeclared, or no longer shows, is red, and so
is whatever is seen on a device for which nothing is declared. The probes live in the zoo and are read and run
by children: this process never imports torch.
"""

from __future__ import annotations

import difflib
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tabulate

from conformance import isolation
from conformance.axes import DEVICES, UsageError, choose
from conformance.records import STATUSES
from conformance.table import visible

PACKAGE = "zoo.probes"
READING_DEADLINE = 300.0
HEADERS = ["probe", "at risk", "what is seen", "issue or source"]
INTRODUCTION = """# Probes

Faults of torch that users of scripted, compiled or mixed-precision models meet, each shown by a few lines of
plain torch. `conformance probes` looks for all of them in the installed torch, `conformance probes NAME` for
one, on the CPU or, with `--device=cuda`, on a GPU. The top of each file says what a user sees and what to do
instead.

"Shows in" states what was seen on the device with the versions under "run with". Those between them and after
the last were not run; an open range says that the last one run has the fault.
"""
UNSEEN = """
On {device} none was run yet: nothing is declared there, and whatever a probe sees is INCONCLUSIVE.
"""


@dataclass(frozen=True)
class Finding:
    """What came of a probe.

    Attributes:
        probe: its name.
        status: a key of `STATUSES`: EXPECTED, PASS, STALE, FAIL, INCONCLUSIVE, ERROR, CRASH, TIMEOUT, UNSUPPORTED
            or SKIPPED.
        seen: the symptom, an error, how the process died, why it was skipped; "" where torch did right.
        issue: the link, or the source where there is none.
    """

    probe: str
    status: str
    seen: str
    issue: str

    @property
    def red(self) -> bool:
        return STATUSES[self.status].red


def main(names: list[str], *, device: str, timeout: float) -> int:
    """Run the probes of those names, or all, and print a table; 1 if any verdict is red, else 0.

    Args:
        names: of probes; empty for all.
        device: one of `DEVICES`.
        timeout: seconds a probe may take.

    Raises:
        UsageError: no probe has that name, the device is unknown or absent, or the probes cannot be read.
    """
    os.environ["CONFORMANCE_PRELOAD"] = "compiler"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers beside each probe
    findings = run(names, device, timeout)
    rows = [[f"{STATUSES[f.status].glyph} {f.probe}", f.status, visible(f.seen), visible(f.issue)] for f in findings]
    table = tabulate.tabulate(rows, headers=["probe", "verdict", "seen", "issue"], disable_numparse=True)
    print(table)  # noqa: T201 -- this is the interface
    return int(any(finding.red for finding in findings))


def run(names: list[str], device: str, timeout: float) -> list[Finding]:
    """Run the probes of those names, or all, one after the other, each in a process and compile cache of its own.

    Raises:
        UsageError: no probe has that name, the device is unknown or absent, or the probes cannot be read.
    """
    choose("device", DEVICES, (device,))
    known = {probe["name"]: probe for probe in _read(device)}
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3))
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"no probe named {name!r}; {hint}")
    return [_find_out(known[name], device, timeout) for name in names or known]


def _find_out(probe: dict[str, Any], device: str, timeout: float) -> Finding:
    if not probe["concerns"]:
        alone = f"not run: it is about {' and '.join(probe['devices'])} alone"
        return Finding(probe["name"], "SKIPPED", alone, probe["issue"] or probe["source"])
    return judge_probe(probe, device, _look(probe["name"], device, timeout))


def judge_probe(probe: dict[str, Any], device: str, ending: isolation.Ending) -> Finding:
    """Hold what a probe saw against what is declared for this torch on a device.

    Args:
        probe: as `describe` returns it for that device.
        device: where it ran.
        ending: of the process that ran `observe`.
    """
    kind, seen = next(iter(ending.answer.items())) if ending.kind == "answered" else (ending.kind, ending.message)
    status = _status(probe, kind, seen)
    if STATUSES[status].red:
        declared = f"declared for this torch: {probe['symptom'] if probe['declared'] else 'nothing'}"
        if probe["declared"] is None:
            declared = f"nothing is declared for {device}"
        seen = f"{seen or 'not seen'}; {declared}"
    return Finding(probe["name"], status, seen, probe["issue"] or probe["source"])


def _status(probe: dict[str, Any], kind: str, seen: str) -> str:
    shows = seen == probe["symptom"] and kind in ("saw", "crashed")
    if probe["declared"] is None and (shows or kind == "saw"):
        return "INCONCLUSIVE"
    if shows:
        return "EXPECTED" if probe["declared"] else "FAIL"
    if kind == "saw" and not seen:
        return "STALE" if probe["declared"] else "PASS"
    return {
        "saw": "FAIL",
        "raised": "ERROR",
        "unavailable": "UNSUPPORTED",
        "crashed": "CRASH",
        "timed out": "TIMEOUT",
    }[kind]


def markdown() -> str:
    """The page docs/probes.md, from the declarations alone: nothing is run."""
    probes = _read("cpu")
    devices = [device for device in DEVICES if any(device in probe["seen"] for probe in probes)]
    headers = HEADERS + [f"{device.upper()}: {what}" for device in devices for what in ("shows in", "run with")]
    rows = [headers, ["---"] * len(headers), *(_row(probe, devices) for probe in probes)]
    unseen = "".join(UNSEEN.format(device=device.upper()) for device in DEVICES if device not in devices)
    return INTRODUCTION + unseen + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(probe: dict[str, Any], devices: list[str]) -> list[str]:
    number = probe["issue"].rpartition("/")[2]
    row = [
        f"[{probe['name']}](../{PACKAGE.replace('.', '/')}/{probe['name']}.py)",
        probe["summary"],
        probe["symptom"],
        f"[pytorch#{number}]({probe['issue']})" if number else probe["source"],
    ]
    for device in devices:
        seen = probe["seen"].get(device)
        row += [f"`{seen['torch']}`", ", ".join(seen["checked"])] if seen else ["", ""]
    return row


def _read(device: str) -> list[dict[str, Any]]:
    target, task = f"{__name__}:describe", {"package": PACKAGE, "device": device}
    try:
        ending = isolation.run(target, task, deadline=READING_DEADLINE)
    except EOFError:  # it imports torch and the zoo before all else, and prints why it could not
        raise UsageError("the fork server does not start; the reason stands above") from None
    if ending.kind != "answered":
        raise UsageError(f"reading the probes of {PACKAGE}: {ending.message}")
    if "usage" in ending.answer:
        raise UsageError(ending.answer["usage"])
    probes: list[dict[str, Any]] = ending.answer["probes"]
    return probes


def _look(name: str, device: str, timeout: float) -> isolation.Ending:
    with tempfile.TemporaryDirectory(prefix="conformance-probe-", ignore_cleanup_errors=True) as cache:
        task = {"home": f"{PACKAGE}.{name}", "device": device, "cache": cache}
        return isolation.run(f"{__name__}:observe", task, deadline=timeout)


def describe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: the probes of task["package"] as data.

    "concerns" says whether a probe is to be run on task["device"], "declared" whether this torch should show the
    fault there; None: nobody has looked.

    Returns: {"probes": list}, or {"usage": message} where the device is absent.
    """
    import torch  # noqa: PLC0415 -- in the child alone

    from conformance import plan  # noqa: PLC0415
    from zoo.probe import find  # noqa: PLC0415

    enter_phase("read")
    device = task["device"]
    try:
        plan.check_present(device)
    except UsageError as problem:
        return {"usage": str(problem)}
    plain = ("name", "summary", "issue", "source", "symptom", "devices")
    probes = []
    for probe in find(task["package"]):
        seen = {where: vars(what) for where, what in probe.seen.items()}
        declared = probe.seen[device].shows_in(torch.__version__) if device in probe.seen else None
        known = {"seen": seen, "concerns": probe.concerns(device), "declared": declared}
        probes.append({**{key: getattr(probe, key) for key in plain}, **known})
    return {"probes": probes}


def observe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, str]:
    """Child process: run the probe of task["home"] on task["device"], its compile cache in the folder task["cache"].

    Returns: one item: {"saw": text}, {"raised": text} or {"unavailable": reason}.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task["cache"]
    import torch  # noqa: PLC0415 -- in the child alone

    from conformance.failures import one_line  # noqa: PLC0415
    from zoo.probe import Unavailable  # noqa: PLC0415

    warnings.simplefilter("ignore")  # deprecations are no faults
    torch.set_num_threads(1)
    probe = importlib.import_module(task["home"]).PROBE
    enter_phase("observe")
    try:
        seen = probe.observe(task["device"])
    except Unavailable as reason:
        return {"unavailable": str(reason)}
    except Exception as problem:  # noqa: BLE001 -- a probe may raise anything
        return {"raised": f"{type(problem).__name__}: {one_line(problem)}"}
    return {"saw": seen} if isinstance(seen, str) else {"raised": f"TypeError: observe returned {seen!r}"}

"""`conformance list` and `conformance probes`: which models there are, and which known faults this torch has.

A fault that is declared and shows is EXPECTED. A fault that shows undeclared is red, and so is a declared one that no
longer shows. On a device for which nothing is declared, every probe that runs is red. The probes are in the zoo. Child
processes read and run them, so this process never imports torch.
"""

from pathlib import Path

from conformance.axes import DEVICES, choose
from conformance.commands.output import tell
from conformance.commands.planning import ask_child
from conformance.errors import ExitCode, UsageError, suggestion
from conformance.judging import executor
from conformance.process import child, environment
from conformance.records import cell, tasks
from conformance.records.tasks import ProbeFinding, ProbeInfo, ProbeSighting
from conformance.show.text import table, visible
from conformance.store import files

STATUS_OF = {
    "saw": "FAIL",
    "raised": "ERROR",
    "refused": "ERROR",
    "unavailable": "UNSUPPORTED",
    "crashed": "CRASH",
    "timed out": "TIMEOUT",
}


def list_models(sources: tuple[str, ...]) -> ExitCode:
    """Print a table of the models of some sources, or of the whole zoo, with their summaries and cases.

    Raises:
        UsageError: a source is unknown or does not import.
    """
    models = ask_child("reading the models", tasks.LIST_MODELS, tasks.PlanRequest(sources), "spawn").models
    rows = [[model.name, visible(model.summary), ", ".join(model.cases)] for model in models]
    tell(table(rows, ["model", "summary", "cases"]))
    return ExitCode.OK


def show_probes(names: tuple[str, ...], *, device: str, timeout: float, page: Path | None = None) -> ExitCode:
    """Run probes, all if none is named, and print a table of the results. A page is the file that stores them.

    Returns:
        `RED` if any result is red, otherwise `OK`.

    Raises:
        UsageError: no probe has that name, the device is unknown or absent, the probes cannot be read, or the results
            cannot be stored.
    """
    found = observe(names, device, timeout)
    findings = found.findings
    rows = [
        [f"{cell.STATUSES[f.status].glyph} {f.probe}", f.status, visible(f.seen), visible(f.link)] for f in findings
    ]
    tell(table(rows, ["probe", "verdict", "seen", "issue"]))
    if page is not None:
        files.write_document(page, "probes", found)
    return ExitCode.RED if any(finding.red for finding in findings) else ExitCode.OK


def observe(names: tuple[str, ...], device: str, timeout: float) -> tasks.ProbeRun:
    """Run probes one after the other, each with its own process and compile cache; see `show_probes`."""
    choose("device", DEVICES, (device,))
    environment.prepare_children(None, compiles_for=(device,))  # each probe has a cache of its own
    listed = read(device)
    known = {probe.name: probe for probe in listed.probes}
    for name in names:
        if name not in known:
            raise UsageError(f"no probe named {name!r}{suggestion(name, known)}")
    findings = tuple(_finding(known[name], device, timeout) for name in dict.fromkeys(names or known))
    return tasks.ProbeRun(listed.environment, device, findings)


def read(device: str) -> tasks.ProbeList:
    """All probes, with what they declare for a device.

    Raises:
        UsageError: the device is absent, or the probes cannot be read.
    """
    request = tasks.ProbesRequest(tasks.PACKAGE, device)
    return ask_child("reading the probes", tasks.READ_PROBES, request, "forkserver")


def _finding(probe: ProbeInfo, device: str, timeout: float) -> ProbeFinding:
    if not probe.concerns:
        alone = f"not run: it is about {' and '.join(probe.devices)} alone"
        return ProbeFinding(probe.name, "SKIPPED", alone, probe.link, probe.summary, probe.remedy)
    return judge_probe(probe, device, executor.run_probe(probe.name, device, timeout))


def judge_probe(probe: ProbeInfo, device: str, ending: child.Ending[ProbeSighting]) -> ProbeFinding:
    """Compare how a probe ended with what it declares for this torch on the device that it ran on."""
    kind, seen = executor.probe_outcome(ending)
    status = _status(probe, kind, seen)
    if cell.STATUSES[status].red:
        declared = f"declared for this torch: {probe.symptom if probe.declared else 'nothing'}"
        if probe.declared is None:
            declared = f"nothing is declared for {device}"
        seen = f"{seen or 'not seen'}; {declared}"
    return ProbeFinding(probe.name, status, seen, probe.link, probe.summary, probe.remedy)


def _status(probe: ProbeInfo, kind: str, seen: str) -> str:
    shown = executor.shows_fault(probe.symptom, kind, seen)
    if probe.declared is None and (shown or kind == "saw"):
        return "INCONCLUSIVE"
    if shown:
        return "EXPECTED" if probe.declared else "FAIL"
    if kind == "saw" and not seen:
        return "STALE" if probe.declared else "PASS"
    return STATUS_OF[kind]

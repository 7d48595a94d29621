"""`conformance compat`: shows since which torch version each cell works, and which versions have which known faults."""

from __future__ import annotations

from pathlib import Path

from conformance.commands.output import tell, write
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.figures.history import faults, histories, version_of, versions
from conformance.records.probes import ProbeRun
from conformance.run import documents, summaries
from conformance.run.summaries import Summary
from conformance.show import compat as page


def main(paths: tuple[Path, ...], *, markdown: Path | None, json: Path | None) -> ExitCode:
    """Read runs of several versions, print the atlas, and write it to files.

    Args:
        paths: run folders, and files that `conformance probes --write` wrote.
        markdown: file to write; None for none.
        json: file to write; None for none.

    Raises:
        UsageError: one of them cannot be read or is void, two of one version judge the same cell or run the same probe,
            or a file cannot be written.
    """
    runs: list[Summary] = []
    probes: list[ProbeRun] = []
    for path in paths:
        if path.is_file():
            probes.append(documents.read_probes(path))
        else:
            runs.append(summaries.read(path))
    seeds = {run.plan.seed for run in runs}
    if len(seeds) > 1:
        raise UsageError(
            f"these runs have different seeds, {', '.join(map(str, sorted(seeds)))}; compare runs of one seed"
        )
    rising = versions(runs, probes)
    runs.sort(key=lambda run: rising.index(version_of(run.plan.environment.torch)))
    atlas = page.Atlas(rising, list(map(_made, runs)), histories(runs), faults(probes))
    tell(page.text(atlas))
    write(markdown, lambda: page.markdown(atlas))
    write(json, lambda: page.document(atlas))
    return ExitCode.OK


def _made(run: Summary) -> str:
    """What made a run, and how many of its cells are judged."""
    known = run.plan.environment
    judged = sum(cell in run.verdicts for cell in run.planned)
    lacking = "" if judged == len(run.planned) else f" of {len(run.planned)}, incomplete"
    part = f" · shard {run.plan.shard}" if run.plan.shard else ""
    machine = f"torch {known.torch} · Python {known.python} · {known.cpu} {known.cpu_capability}"
    return f"{machine} · {judged} cells{lacking}{part}"

"""`conformance compat`: shows since which torch version each cell works, and which versions have which known faults."""

from __future__ import annotations

from pathlib import Path

from conformance.commands.output import tell, write
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.figures import atlas
from conformance.records.probes import ProbeRun
from conformance.show import compat as page
from conformance.store import files, summaries
from conformance.store.summaries import Summary


def show_compat(paths: tuple[Path, ...], *, markdown: Path | None, json: Path | None) -> ExitCode:
    """Read runs of several versions, print the atlas, and write it to files.

    Args:
        paths: run folders, files that `conformance probes --write` wrote, and at most one that this command wrote.
        markdown: file to write; None for none.
        json: file to write; None for none.

    Raises:
        UsageError: one of them cannot be read, two of one version judge the same cell or run the same probe,
            or a file cannot be written.
    """
    runs: list[Summary] = []
    probes: list[ProbeRun] = []
    earlier: dict[Path, atlas.Atlas] = {}
    for path in paths:
        if not path.is_file():
            runs.append(summaries.read(path))
        elif (known := atlas.read(path)) is not None:
            earlier[path] = known
        else:
            probes.append(files.decode(path, files.read(path), "probes", ProbeRun))
    if len(earlier) > 1:
        raise UsageError(f"{' and '.join(map(str, earlier))} are two files of compat; give one, and the newer runs")
    seeds = {run.plan.seed for run in runs}
    if len(seeds) > 1:
        raise UsageError(
            f"these runs have different seeds, {', '.join(map(str, sorted(seeds)))}; compare runs of one seed"
        )
    found = atlas.join(runs, probes, next(iter(earlier.values()), atlas.Atlas()))
    tell(page.text(found))
    write(markdown, lambda: page.markdown(found))
    write(json, lambda: atlas.document(found))
    return ExitCode.OK

"""`conformance diff`: compares two stored runs, and fails if a cell is red or has another verdict than before."""

from __future__ import annotations

from pathlib import Path

from conformance.commands.output import tell, write
from conformance.exit_codes import ExitCode
from conformance.figures.changes import DECIDING, changes, surroundings
from conformance.show import changes as page
from conformance.store import summaries


def show_changes(before: Path, after: Path, *, markdown: Path | None, json: Path | None) -> ExitCode:
    """Compare two runs, print what has changed, and write it to files.

    Args:
        before: the folder of the first run.
        after: the folder of the second one.
        markdown: file to write; None for none.
        json: file to write; None for none.

    Returns:
        `RED` if a cell is newly red or its verdict has changed, otherwise `OK`.

    Raises:
        UsageError: a run cannot be read, or a file cannot be written.
    """
    first, second = summaries.read(before), summaries.read(after)
    around, found = surroundings(first, second), changes(first, second)
    names = str(before), str(after)
    tell(page.text(names, around, found))
    write(markdown, lambda: page.markdown(names, around, found))
    write(json, lambda: page.document(names, around, found))
    return ExitCode.RED if any(change.kind in DECIDING for change in found) else ExitCode.OK

"""`conformance show`: prints a stored run again, as text or as Markdown, and writes it as JUnit's XML."""

from __future__ import annotations

from pathlib import Path

from conformance.commands import github, stored
from conformance.commands.output import tell
from conformance.exit_codes import ExitCode
from conformance.show import junit


def show_stored(folder: Path, *, markdown: bool = False, xml: Path | None = None) -> ExitCode:
    """Print a run, and return the exit code that it has.

    Args:
        folder: the run folder.
        markdown: print Markdown instead of text.
        xml: the file for JUnit's XML; None for none.

    Raises:
        UsageError: the folder is no run folder, is damaged, or holds records that contradict each other.
        MachineError: the file for JUnit cannot be written.
    """
    contents = stored.read(folder)
    tell(github.markdown(contents, folder) if markdown else stored.report(contents, folder))
    if xml:
        junit.write(contents, xml)
    return stored.exit_code(contents)

"""`conformance verify`: checks a run folder with a reader of its own."""

from __future__ import annotations

from pathlib import Path

from conformance.commands.output import say, tell
from conformance.exit_codes import ExitCode
from conformance.run.verify import verify
from conformance.show.text import visible


def main(folder: Path) -> ExitCode:
    """Check a run folder, and print what it holds or what is wrong with it."""
    found = verify(folder)
    if found.damage:
        say(f"{folder}: {found.text()}")
    else:
        tell(f"{visible(str(folder))}: {found.text()}")
    return ExitCode(found.code)

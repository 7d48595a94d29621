"""Tells GitHub Actions of a run where it runs there: a summary of the step, and annotations in its log.

GitHub takes lines of a log that begin with `::` as commands. So nothing that a command prints counts as one, but the
annotations: a text of a model could be the start of a line.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.commands.output import say, tell
from conformance.commands.stored import exit_code, report
from conformance.exit_codes import ExitCode
from conformance.show.annotations import error_commands
from conformance.show.markdown import page
from conformance.store.run_files import Contents

ACTIONS, SUMMARY, WORKSPACE = "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"
TOKEN = secrets.token_hex(16)  # no model can guess it


def markdown(contents: Contents, folder: Path) -> str:
    """A run as a page of Markdown.

    Raises:
        UsageError: the records of the run contradict each other, so that no report can be made of them.
    """
    return page(contents, report(contents, folder), folder, green=exit_code(contents) == ExitCode.OK)


def announce(contents: Contents, folder: Path) -> None:
    """Append the page of a run to the summary of the step, and print its annotations, each if GitHub asks for it.

    If the summary cannot be written, a message says so.

    Raises:
        UsageError: the records of the run contradict each other, so that no report can be made of them.
    """
    summary = os.environ.get(SUMMARY, "")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8", newline="\n") as file:
                file.write(f"{markdown(contents, folder)}\n")
        except OSError as problem:
            say(f"{SUMMARY} {summary}: {problem.strerror or problem}; the step has no summary of this run")
    if _is_listening():
        tell(f"::{TOKEN}::")
        for line in error_commands(contents, Path(os.environ.get(WORKSPACE) or Path.cwd()).resolve()):
            tell(line)
        tell(f"::stop-commands::{TOKEN}")


@contextmanager
def commands_off() -> Iterator[None]:
    """Let GitHub take nothing that is printed meanwhile as a command, but what `announce` prints."""
    if _is_listening():
        tell(f"::stop-commands::{TOKEN}")
    try:
        yield
    finally:
        if _is_listening():
            tell(f"::{TOKEN}::")


def _is_listening() -> bool:
    return os.environ.get(ACTIONS) == "true"

"""Reads and prints stored runs, as several commands do."""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.commands.output import columns, say, tell
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.judging import resuming
from conformance.show import bench, matrix
from conformance.store import run_files
from conformance.store.run_files import Contents


def read(folder: Path) -> Contents:
    """Read a stored run. If its last line is unfinished, a message on the error stream says so.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged.
    """
    contents = run_files.read(folder)
    if contents.torn_bytes:
        say(f"{folder / run_files.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")
    if not contents.complete and not contents.missing:
        again = resuming.command(folder, contents.plan)
        say(f"{folder / run_files.DONE} is missing: the run did not end; {again} completes it")
    return contents


def exit_code(contents: Contents) -> ExitCode:
    """`OK` if all cells have verdicts, not all are skipped, and none is red; otherwise `RED`."""
    judged = any(verdict.status != "SKIPPED" for verdict in contents.verdicts.values())
    red = not judged or contents.missing or any(v.red for v in contents.verdicts.values())
    return ExitCode.RED if red else ExitCode.OK


def show(contents: Contents, folder: Path, seconds: float | None = None) -> None:
    """Print the matrix and, if the run is a bench, its measurements.

    Raises:
        UsageError: the records of the run contradict each other, so that no report can be made of them.
    """
    tell(report(contents, folder, seconds))


def report(contents: Contents, folder: Path, seconds: float | None = None) -> str:
    """The matrix and, if the run is a bench, its measurements.

    Raises:
        UsageError: the records of the run contradict each other, so that no report can be made of them.
    """
    parts = []
    try:
        if contents.plan.measure == "bench":
            parts = [bench.Bench(contents).text(), ""]
        parts.append(matrix.render(contents, seconds=seconds, folder=folder, terminal=columns(sys.stdout)))
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        told = f"{type(problem).__name__}: {problem}"
        raise UsageError(f"{folder}: its records contradict each other, so there is no report: {told}") from problem
    return "\n".join(parts)

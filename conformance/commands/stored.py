"""Reads and prints stored runs, as several commands do."""

from __future__ import annotations

from pathlib import Path

from conformance.commands.output import say
from conformance.exit_codes import ExitCode
from conformance.run import store
from conformance.run.store import Contents
from conformance.show import bench, matrix


def read(folder: Path) -> Contents:
    """Read a stored run. If its last line is unfinished, a message on the error stream says so.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged.
    """
    contents = store.read(folder)
    if contents.torn_bytes:
        say(f"{folder / store.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")
    return contents


def exit_code(contents: Contents) -> ExitCode:
    """`OK` if all cells have verdicts, none is red, and the run is not void; otherwise `RED`."""
    red = contents.missing or contents.void or any(v.red for v in contents.verdicts.values())
    return ExitCode.RED if red else ExitCode.OK


def show(contents: Contents, folder: Path, seconds: float | None = None) -> None:
    """Print the matrix and, if the run is a bench, its measurements."""
    if contents.plan.measure == "bench":
        print(bench.Bench(contents).text(), end="\n\n")  # noqa: T201 -- this is the interface
    print(matrix.render(contents, seconds=seconds, folder=folder))  # noqa: T201

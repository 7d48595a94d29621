"""`conformance merge`: joins the shards of one plan into one run."""

from __future__ import annotations

from pathlib import Path

from conformance.commands import github
from conformance.commands.output import say, tell
from conformance.commands.stored import exit_code
from conformance.exit_codes import ExitCode
from conformance.show import matrix
from conformance.store import run_files, shards


def merge_shards(folders: tuple[Path, ...], into: Path, *, any_cpu: bool) -> ExitCode:
    """Join shards, say what is missing, and print what the joined run holds.

    Args:
        folders: the run folders of the shards.
        into: the folder to write.
        any_cpu: join shards of machines with different processors.

    Returns:
        `OK` if every cell of the plan has a verdict and none is red, otherwise `RED`.

    Raises:
        UsageError: the runs cannot be joined, or the joined run cannot be written.
    """
    for line in shards.merge(folders, into, any_cpu=any_cpu):
        say(line)
    contents = run_files.read(into)
    tell(matrix.totals(contents, folder=into))
    github.announce(contents, into)
    return exit_code(contents)

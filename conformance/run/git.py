"""Asks git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conformance.errors import UsageError

OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # set in a git hook, for its repository


def output(folder: Path, *arguments: str, otherwise: str) -> bytes:
    """What git prints when it is called in a folder.

    Raises:
        UsageError: git fails, or is absent; the message is `otherwise` and git's own last line.
    """
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_HOOK}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise UsageError(f"{otherwise} (there is no git)") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"{otherwise} ({told[-1]})" if told else otherwise)
    return done.stdout


def line(folder: Path, *arguments: str, otherwise: str) -> str:
    """The line that git prints, see `output`."""
    return output(folder, *arguments, otherwise=otherwise).decode().strip()

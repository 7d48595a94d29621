"""Defines the exit codes of the command. They are pytest's, because pytest runs the cells."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of a command means."""

    OK = 0  # everything is as expected
    RED = 1  # a cell is red or has no verdict; for `diff`, something is worse
    INTERRUPTED = 2  # the user interrupted it
    INTERNAL_ERROR = 3  # pytest or this project has a bug
    USAGE = 4  # the command cannot do what was asked
    NOTHING_SELECTED = 5  # `-k` selects no cell

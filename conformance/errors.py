"""Defines every error that a step of a run may raise, and the exit codes of the command.

| step | error |
|---|---|
| read the command line, find sources, plan, open a run folder | `UsageError` |
| read a stored record | `RecordError` |
| judge a cell | `MachineError` |
| read a reference | `DamagedReferenceError` |
| write into a run folder | `StoreError`, a `UsageError` |
| run the oracle | `NoOracleError`, `RandomError`, `SelfCheckError`; a broken spec: `zoo.SpecError` |
| make the callable of a mode, or call it | `NoCompilerError`, `NotProvenError`; otherwise what mode or model raise |
| measure | `NotMeasuredError`, `TimedCallError` |
| make an environment with another torch | `NotInstalledError` |

A `UsageError` ends the command with exit code 4 and one line. No other error leaves its step: each becomes a verdict
of its cell, or the reason why there is no figure.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of a command means. They are pytest's, because pytest runs the cells."""

    OK = 0  # everything is as expected
    RED = 1  # a cell is red or has no verdict; for `diff`, something is worse
    INTERRUPTED = 2  # the user interrupted it
    INTERNAL_ERROR = 3  # pytest or this project has a bug
    USAGE = 4  # the command cannot do what was asked
    NOTHING_SELECTED = 5  # `-k` selects no cell


class UsageError(ValueError):
    """The command cannot do what was asked. The message names the argument, what was asked and what was found."""


class StoreError(UsageError):
    """The machine did not keep what was written into a run folder. What was stored before stands."""


class RecordError(ValueError):
    """Stored data does not have the fields or types of its record. The message names record and field."""


class MachineError(OSError):
    """The machine failed, and not the model: a full disk, no process or file to be had. The cell has no verdict."""


class DamagedReferenceError(OSError):
    """A reference file is missing, cannot be read, or does not match its checksum."""


class NoOracleError(RuntimeError):
    """The model runs in float32 but not in float64."""


class RandomError(RuntimeError):
    """Two identical runs of the oracle differ."""


class SelfCheckError(RuntimeError):
    """The oracle disagrees with the spec's reference, its twin or finite differences."""


class NotProvenError(RuntimeError):
    """A callable ran, but not in the mode, precision or device of its cell."""


class NoCompilerError(RuntimeError):
    """The machine has no C++ compiler that works. The message names the one looked for, and how to get one."""


class NotMeasuredError(RuntimeError):
    """A figure could not be measured: in `short` why, for a table, and in `detail` the rest of it, or ""."""

    def __init__(self, short: str, detail: str = "") -> None:
        super().__init__(f"{short}: {detail}" if detail else short)
        self.short = short
        self.detail = detail


class TimedCallError(NotMeasuredError):
    """A timed call raised an exception: `call` is its name, `problem` the exception."""

    def __init__(self, call: str, problem: Exception) -> None:
        super().__init__(type(problem).__name__, str(problem))
        self.call = call
        self.problem = problem


class NotInstalledError(RuntimeError):
    """An environment with another version of torch could not be made. The message is one line."""


BELOW = "\n    "  # before each further line of a message, so that no text can pass for a line of a report


def with_last_lines(text: str, said: Iterable[str]) -> str:
    r"""A message, and below it the last lines that a process printed on its error stream before it ended.

    >>> with_last_lines("killed by SIGABRT", ["what(): no"])
    'killed by SIGABRT\n    what(): no'
    """
    return BELOW.join([text, *said])


def near_names(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: at most three near ones; "" if there are none.

    >>> near_names("compield", ("eager", "compiled")), near_names("x", ("eager", "compiled"))
    ('; did you mean compiled?', '')
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the near names, or all known ones.

    >>> suggestion("compield", ("eager", "compiled")), suggestion("x", ("eager", "compiled"))
    ('; did you mean compiled?', '; known: eager, compiled')
    """
    names = list(known)
    return near_names(name, names) or f"; known: {', '.join(names)}"

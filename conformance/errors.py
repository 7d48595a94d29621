"""Defines every error that a step of a run may raise, the exit codes of the command, and how errors are told on a line.

| step | error |
|---|---|
| read the command line, find sources, plan, open a run folder | `UsageError` |
| read a stored record | `RecordError` |
| judge a cell | `MachineError`, of which `ChangedError` is one |
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
import dis
import errno
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar


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


class ChangedError(MachineError):
    """Files that a cell depends on, `files`, are no longer what was planned. The cell has no verdict."""

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(f"{some(files)} changed while the run went on; start it again")
        self.files = tuple(files)


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


ErrorT = TypeVar("ErrorT", bound=Exception)
ResultT = TypeVar("ResultT")


def of_model(problem: ErrorT) -> ErrorT:
    """An exception of a common type that tells of a model or mode; any other that this project raises is its fault."""
    object.__getattribute__(problem, "__dict__")[OF_MODEL] = True
    return problem


def call_theirs(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """What a function returns that is a person's, or is given a model. What it raises is no fault of this project."""
    return function(*args)


# Tells a fault of this project from one of a model.

FAULT = "a fault of conformance, and of no model, in "
FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE}  # of the machine; no limit of a process causes them
OF_MODEL, NAMED = "of_model", ("conformance.", "zoo.")
OURS, STANDARD = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
PACKAGES = {"site-packages", "dist-packages"}  # which may lie below the standard library
PASSES_ON = dis.opmap["CALL_FUNCTION_EX"]


def blame(problem: BaseException, said: str) -> str:
    """What is said of an exception, after where the fault is if it is one of this project."""
    place = own_fault(problem)
    return f"{FAULT}{place}: {said}" if place else said


def own_fault(problem: BaseException) -> str:
    """Where in its own code this project raised an exception, for which no model is to blame; "" elsewhere.

    The traceback decides. Whoever raised it is the innermost frame, those of the standard library aside. All that calls
    a model or an op of one passes arguments on, as `op(*args)`, or is torch's.
    """
    told = OF_MODEL in object.__getattribute__(problem, "__dict__") or str(type(problem).__module__).startswith(NAMED)
    is_of_machine = isinstance(problem, MemoryError) or (isinstance(problem, OSError) and problem.errno in FAILURES)
    if told or is_of_machine or isinstance(problem, RecursionError) or not isinstance(problem, Exception):
        return ""
    frames = [one for one in _frames(problem) if not _is_shared(Path(one.tb_frame.f_code.co_filename))]
    if not frames:
        return ""
    code, file = frames[-1].tb_frame.f_code, Path(frames[-1].tb_frame.f_code.co_filename)
    if not file.is_relative_to(OURS) or code.co_code[frames[-1].tb_lasti] == PASSES_ON:
        return ""
    return f"{file.relative_to(OURS.parent)}, line {frames[-1].tb_lineno}"


def _frames(problem: BaseException) -> Iterator[TracebackType]:
    step = problem.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _is_shared(file: Path) -> bool:
    """Whether both this project and models call what is in a file."""
    if file == OURS.parent / "zoo" / "internals.py" or file.name.startswith("<frozen "):
        return True
    return file.is_relative_to(STANDARD) and not PACKAGES.intersection(file.parts)


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


# Words on one line: any text and any exception, bounded, so that every file and terminal can hold it; and counts.
#
# A model may raise what it likes: a text of 10 MB, half of a surrogate pair, escape sequences, or an exception that
# cannot say what it is.


HEAD, TAIL = 120, 280  # TorchScript puts the cause at the end of a long traceback
FIRST_LOOK = 2**16  # characters of each end of a text that are looked at
NAME_LENGTH = 80


def one_line(said: object, length: int = HEAD + TAIL) -> str:
    r"""The text of a value on one line, with every sign escaped that is not printable. A long one loses its middle.

    Args:
        said: a text, an exception, or anything else; `str` of it may raise.
        length: the most characters of the line.

    >>> one_line(ValueError("no\nline\x1b[31m \ud800")), one_line("abcdefghijkl", 10)
    ('no line\\x1b[31m \\ud800', 'ab … hijkl')
    """
    if type(said) is str and len(said) <= length and said.isprintable():
        return said
    line = " ".join(text_of(said).split())
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
    return without_middle(line, length)


def without_middle(line: str, length: int) -> str:
    """A text of at most so many characters."""
    if len(line) <= length:
        return line
    head = length * HEAD // (HEAD + TAIL) - 1
    return f"{line[:head]} … {line[len(line) - (length - head - 3) :]}"


def describe_error(problem: BaseException) -> str:
    """The type of an exception and its text, on one line.

    >>> describe_error(KeyError("x"))
    "KeyError: 'x'"
    """
    text = one_line(problem)
    return f"{name_of(problem)}: {text}" if text else name_of(problem)


def name_of(problem: BaseException) -> str:
    """The name of an exception's type, on one line."""
    return one_line(type.__dict__["__name__"].__get__(type(problem)), NAME_LENGTH)


def text_of(said: object, most: int = FIRST_LOOK) -> str:
    """The text of a value, without the middle of a very long one; if `str` raises, what it raises."""
    try:
        text = said if type(said) is str else str.__str__(str(said))
    except BaseException as fault:  # noqa: BLE001 -- `str` runs the model's code
        return f"(its text raises {name_of(fault)})"
    return text if len(text) <= 2 * most else f"{text[:most]} … {text[-most:]}"


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless it is one.

    >>> counted(1, "cell"), counted(0, "cell")
    ('1 cell', '0 cells')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 1) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"]), some(["a", "b", "c"], 2), some(["a"])
    ('a and 2 more', 'a, b and 1 more', 'a')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

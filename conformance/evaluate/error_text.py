"""Shortens the text of an exception to one line, and recognises those that mean a failure of memory or machine."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

import torch

from conformance import errors
from conformance.axes import Precision
from zoo import SpecError, internals

CHECKS = "if it checks numbers that roundings may change, such as whether probabilities add up to one, turn that off"
REFUSALS = (
    "can't allocate memory",  # the CPU allocator, in a plain RuntimeError
    "not enough memory",
    "out of memory",  # CUDA, its driver and Triton; TorchScript keeps the words and loses the type
    "ALLOC_FAILED",  # cuBLAS, cuFFT, cuSOLVER, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
)
NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
DEEPEST = 20  # exceptions in a chain
LINE_LENGTH = 4000  # of a line that is looked at
# The work of each pattern grows with a text as its length does: a run of blanks is looked at from its begin alone.
ADVICE = re.compile(
    r"(?<=CUDA error: )([^\n]*)\n.*|(?<! ) *Of the allocated memory .*|(?<!\s)\s*Set TORCHDYNAMO_VERBOSE=1 for .*",
    re.DOTALL,
)
HINTS = re.compile(  # of Dynamo, around the cause
    r"\n *Hint: [^\n]*|\n *For more details about this graph break, please visit: \S*"
    r"|\n *Developer debug context: *(?=\n)|\n *\^+ *(?=\n|$)"
)
FAKE = re.compile(  # what an op raises when Dynamo runs it without data
    r"(?m:^)[^\n]*when making fake tensor call\s*"
    r"Explanation: [^\n]*?: got (?P<what>\w+\((?P<quote>['\"])[^\n]*(?P=quote)\))"
)
OTHER_PROCESSES = re.compile(r" Process \d+ has \S+ \S+ memory in use\.")  # of the device, when its memory is full
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")  # of an object, another one in each cell that fails alike
CALLERS = re.compile(r"\n\nAt:\n(  [^\n]*\(\d+\): [^\n]*(\n|$))+")  # below the cause, if a script calls Python
SCRIPT = re.compile(  # where TorchScript fails, with the code around it; the compiler names no function
    r"(?:(?<!\s)\s*\n *The original call is)?(?:(?<!\s)\s*)?:?"
    r"\n *File \"(?:[^\"\n]*/)?(?P<file>[^\"/\n]+)\", line (?P<line>\d+)(?P<function>, in [^\n]*)?"
    r"(?P<code>(?:\n(?:(?: {4,}|def |@)[^\n]*|(?=\n)))+)"  # a blank line may stand in it
)
MARKED = re.compile(r"\n *(?P<meant>[^\n ][^\n]*)\n *~+ <--- HERE")
INTERPRETER = "The following operation failed in the TorchScript interpreter."
POISONED = "the fork server had touched CUDA before this cell left it, so CUDA refuses the cell"


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an allocation failed. A kernel that needs too much shared memory does not count."""
    if isinstance(problem, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    return isinstance(problem, RuntimeError) and any(text in errors.text_of(problem) for text in REFUSALS)


def is_machine_failure(problem: BaseException) -> bool:
    """Whether the machine failed and not what it ran: no room on a disk, a disk that fails, no file to be had.

    A compiler says so in its own words, and torch wraps what it raises. A torch that lacks a name which this project
    needs is no fault of the model either, and nor is a fault of this project.
    """
    if errors.own_fault(problem):
        return True
    seen: BaseException | None = problem
    for _ in range(DEEPEST):
        if seen is None:
            return False
        if isinstance(seen, internals.MissingError) or (isinstance(seen, OSError) and seen.errno in errors.FAILURES):
            return True
        if type(seen).__module__.startswith("torch") and any(text in errors.text_of(seen) for text in NO_ROOM):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextlib.contextmanager
def blame_noise(case: str, precision: Precision) -> Iterator[None]:
    """Say of an exception that the model raises it when its roundings are perturbed.

    Raises:
        SpecError: in place of an exception that tells of no full memory and no failure of the machine.
    """
    try:
        yield
    except Exception as problem:
        if is_out_of_memory(problem) or is_machine_failure(problem):
            raise
        roundings = f"roundings as large as those of {precision.name}"
        raise SpecError(
            f"case {case}: with {roundings}, the model raises {describe_error(problem)}; {CHECKS}"
        ) from problem


def describe_error(problem: BaseException) -> str:
    """The type of an exception and its text; see `one_line`."""
    text = one_line(problem)  # an error in a script names its own
    return errors.blame(problem, text if re.match(r"\w+Error: ", text) else f"{errors.name_of(problem)}: {text}")


def one_line(problem: BaseException) -> str:
    """The exception's text on one bounded line, without addresses, callers, torch's advice and other processes."""
    lines = (errors.without_middle(line, LINE_LENGTH) for line in errors.text_of(problem).split("\n"))
    text = FAKE.sub(r"\g<what>", without_hints(ADVICE.sub(r"\1", "\n".join(lines))))
    text = _of_script(OTHER_PROCESSES.sub("", CALLERS.sub("\n", ADDRESS.sub("", text))))
    if "forked subprocess" in text and internals.is_in_bad_fork():
        text = f"{POISONED}: {text}"
    return errors.one_line(text)


def without_hints(text: str) -> str:
    """What Dynamo says, without its hints and links."""
    return HINTS.sub("", text).strip()


def _of_script(text: str) -> str:
    """An error of TorchScript by its cause and its place, without the code around it and without its callers."""
    places = [*SCRIPT.finditer(text)]
    if places and text.lstrip().startswith(INTERPRETER):
        cause = text[places[-1].end() :].strip().removeprefix("builtins.")
        return f"{cause} {_place(places[-1])}"
    return SCRIPT.sub(lambda place: place[0] if place["function"] else f" {_place(place)}", text)


def _place(found: re.Match[str]) -> str:
    meant = MARKED.search(found["code"])
    code = f": {meant['meant']}" if meant else ""
    return f"({found['file']}, line {found['line']}{code})"

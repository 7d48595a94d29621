"""Shortens the text of an exception to one line, and recognises those that mean a failure of memory or machine."""

from __future__ import annotations

import errno
import os
import re

import torch

REFUSALS = (
    "can't allocate memory",  # the CPU allocator, in a plain RuntimeError
    "not enough memory",
    "out of memory",  # CUDA, its driver and Triton; TorchScript keeps the words and loses the type
    "ALLOC_FAILED",  # cuBLAS, cuFFT, cuSOLVER, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
)
FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE}  # of the machine; no limit of a process causes them
NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
DEEPEST = 20  # exceptions in a chain
LONGEST = 2**16  # characters of a text that are looked at
ADVICE = re.compile(r"(?<=CUDA error: )([^\n]*)\n.*| *Of the allocated memory .*", re.DOTALL)
CALLERS = re.compile(r"\n\nAt:\n(  [^\n]*\(\d+\): [^\n]*(\n|$))+")  # below the cause, if a script calls Python
HEAD, TAIL = 120, 280  # TorchScript puts the cause at the end of a long traceback
POISONED = "the fork server had touched CUDA before this cell left it, so CUDA refuses the cell"


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an allocation failed. A kernel that needs too much shared memory does not count."""
    if isinstance(problem, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    return isinstance(problem, RuntimeError) and any(text in _text(problem) for text in REFUSALS)


def is_machine_failure(problem: BaseException) -> bool:
    """Whether the machine failed and not what it ran: no room on a disk, a disk that fails, no file or process left.

    A compiler says so in its own words, and torch wraps what it raises.
    """
    seen: BaseException | None = problem
    for _ in range(DEEPEST):
        if seen is None:
            return False
        if isinstance(seen, OSError) and seen.errno in FAILURES:
            return True
        if type(seen).__module__.startswith("torch") and any(text in _text(seen) for text in NO_ROOM):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def one_line(problem: BaseException) -> str:
    """The exception's text on one line, without torch's advice and callers. A long text loses its middle."""
    text = " ".join(CALLERS.sub("\n", ADVICE.sub(r"\1", _text(problem))).split())
    if "forked subprocess" in text and torch.cuda._is_in_bad_fork():  # noqa: SLF001 -- nothing public tells it
        text = f"{POISONED}: {text}"
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"


def _text(problem: BaseException) -> str:
    try:
        text = str(problem)
    except BaseException as second:  # noqa: BLE001 -- a model's exception may raise anything here
        return f"its text raises {type(second).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}{text[-LONGEST // 2 :]}"

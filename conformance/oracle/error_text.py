"""Shortens the text of an exception to one line, and recognises those that mean out of memory."""

from __future__ import annotations

import re

import torch

import conformance.one_line
from conformance.one_line import text_of

REFUSALS = (
    "can't allocate memory",  # the CPU allocator, in a plain RuntimeError
    "not enough memory",
    "out of memory",  # CUDA, its driver and Triton; TorchScript keeps the words and loses the type
    "ALLOC_FAILED",  # cuBLAS, cuFFT, cuSOLVER, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
)
ADVICE = re.compile(r"(?<=CUDA error: )([^\n]*)\n.*| *Of the allocated memory .*", re.DOTALL)
CALLERS = re.compile(r"\n\nAt:\n(  [^\n]*\(\d+\): [^\n]*(\n|$))+")  # below the cause, if a script calls Python
POISONED = "the fork server had touched CUDA before this cell left it, so CUDA refuses the cell"


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an allocation failed. A kernel that needs too much shared memory does not count."""
    if isinstance(problem, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(problem, RuntimeError) and any(text in text_of(problem) for text in REFUSALS)


def one_line(problem: BaseException) -> str:
    """The exception's text on one bounded line, without torch's advice and callers."""
    text = CALLERS.sub("\n", ADVICE.sub(r"\1", text_of(problem)))
    if "forked subprocess" in text and torch.cuda._is_in_bad_fork():  # noqa: SLF001 -- nothing public tells it
        text = f"{POISONED}: {text}"
    return conformance.one_line.one_line(text)

"""Says what an exception means."""

from __future__ import annotations

import torch

REFUSALS = ("can't allocate memory", "not enough memory", "out of memory")
HEAD, TAIL = 120, 280  # TorchScript puts the cause at the end of a long traceback


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether memory was refused; the CPU allocator says so in a plain RuntimeError."""
    if isinstance(problem, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(problem, RuntimeError) and any(text in str(problem) for text in REFUSALS)


def one_line(problem: BaseException) -> str:
    """The exception's text on one line, its middle left out where it runs on."""
    text = " ".join(str(problem).split())
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} … {text[-TAIL:]}"

"""A function that a child process calls to see whether CUDA refuses it."""

import torch

from conformance.evaluate.error_text import one_line
from conformance.records.tasks import Target


def use_cuda(task, process):
    """Whether CUDA refuses this process because it is forked, and what a cell would report."""
    try:
        torch.ones(1, device="cuda")
    except (RuntimeError, AssertionError) as problem:
        return {"refused": torch.cuda._is_in_bad_fork(), "text": one_line(problem)}
    return {"refused": torch.cuda._is_in_bad_fork(), "text": ""}


USE_CUDA = Target(f"{__name__}:use_cuda", dict, dict)

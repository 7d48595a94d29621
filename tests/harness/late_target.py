"""A function that a child process calls to see whether its process has the compiler already."""

import sys

from conformance.records.tasks import Target


def needs_the_compiler(task, process):
    """Whether the compiler was there before this function imported it."""
    there = "torch._dynamo" in sys.modules
    import torch._dynamo  # noqa: F401, PLC0415

    return {"there": there}


NEEDS_THE_COMPILER = Target(f"{__name__}:needs_the_compiler", dict, dict)

"""Chooses the folder of compiled code for a command: the one of this user, or a temporary one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance.commands.output import say
from conformance.process import environment
from conformance.records.plan import Plan


@contextlib.contextmanager
def compile_cache(plan: Plan, *, fresh: bool = False) -> Iterator[Path]:
    """The folder of compiled code. If the user's own cannot be written, a message says so, and it is a temporary one.

    Args:
        plan: the plan of the cells, with the environment.
        fresh: compile everything anew, in a temporary folder.
    """
    folder = environment.cache_of(plan.environment)
    problem = "" if fresh else environment.why_unusable(folder)
    if problem and plan.compiling_modes:
        say(f"compiled code is kept for this run only, because {folder} cannot be written: {problem}")
    if not fresh and not problem:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="conformance-cache-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)

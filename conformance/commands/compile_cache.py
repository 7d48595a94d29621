"""Chooses the folder of compiled code for a command: the one of this user, or a temporary one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from conformance.commands.output import say
from conformance.errors import StoreError
from conformance.records.plan import Plan
from conformance.run import cache_sums, environment, stored_code


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
        with _checked(folder) if plan.compiling_modes else contextlib.nullcontext():
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="conformance-cache-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


@contextlib.contextmanager
def _checked(folder: Path) -> Iterator[None]:
    """Empty the cache if a file in it has changed since the last run, and note the sums of its files at the end."""
    damaged = cache_sums.damaged_file(folder)
    if damaged:
        say(f"the compile cache was emptied, because {folder / damaged} was damaged")
        stored_code.set_aside(folder)
        folder.mkdir(exist_ok=True)
    yield
    with contextlib.suppress(OSError, StoreError):  # without sums, a damaged file is found when it fails
        cache_sums.note(folder)

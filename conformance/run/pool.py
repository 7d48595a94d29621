"""Runs jobs in child processes, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from conformance.errors import MachineError
from conformance.records.measurements import Reason
from conformance.records.tasks import ResultT, Target, TaskT
from conformance.run import child

AnyResult = TypeVar("AnyResult")


def carry_out(jobs: Mapping[str, Callable[[], AnyResult]]) -> Iterator[tuple[str, AnyResult]]:
    """Run all jobs, as many at a time as there are cores; yields the name and the result of each when it ends."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        pending = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for done in as_completed(pending):
                yield pending[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def result(target: Target[TaskT, ResultT], task: TaskT, deadline: float) -> ResultT | Reason:
    """What a child process returns, or the reason why it returned nothing.

    Raises:
        MachineError: the system starts no process.
    """
    try:
        ending = child.run(target, task, deadline=deadline)
    except (OSError, MemoryError) as problem:
        raise MachineError(f"no process could be started to measure: {problem}") from problem
    if ending.result is not None:
        return ending.result
    where = f"in phase {ending.phase}, " if ending.kind != "refused" else ""
    return Reason(ending.kind, f"{where}{ending.message}")

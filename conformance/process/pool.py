"""Runs jobs in child processes, several at a time."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from conformance.errors import MachineError
from conformance.process import child
from conformance.records.measurements import Reason
from conformance.records.tasks import ResultT, Target, TaskT

AnyResult = TypeVar("AnyResult")
BATCH = 2 * (os.cpu_count() or 1)  # jobs that prepare together; fewer leave cores free, more take memory


def carry_out(jobs: Mapping[str, Callable[[], AnyResult]], at_once: int = 0) -> Iterator[tuple[str, AnyResult]]:
    """Run all jobs; yields the name and the result of each when it ends.

    Args:
        jobs: the jobs by name.
        at_once: how many may run at the same time; 0 for as many as there are cores.
    """
    with ThreadPoolExecutor(at_once or os.cpu_count() or 1) as pool:
        pending = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for done in as_completed(pending):
                yield pending[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def measure(batches: Iterable[Mapping[str, Callable[[], AnyResult]]]) -> Iterator[tuple[str, AnyResult]]:
    """Run jobs that prepare and then measure alone; yields the name and the result of each when it ends.

    A measurement waits until nobody prepares. If a job began whenever another one ends, each measurement would wait for
    the slowest preparation while cores are free. So a batch begins when the one before it is done: first all of its
    jobs prepare, then they measure one after another.

    Args:
        batches: jobs by name; see `BATCH`.
    """
    for batch in batches:
        yield from carry_out(batch, BATCH)


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

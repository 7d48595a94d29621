"""Work in child processes, several at a time; what must be alone on the machine sees to that itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from conformance import isolation

Answer = dict[str, Any]


def carry_out(jobs: Mapping[str, Callable[[], Answer]]) -> Iterator[tuple[str, Answer]]:
    """Do all jobs, as many at a time as there are cores, and yield name and answer of each as it is done."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        pending = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for done in as_completed(pending):
                yield pending[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def answer(target: str, task: dict[str, Any], deadline: float) -> Answer:
    """What a child process answers, or {"reason": how it ended}."""
    ending = isolation.run(target, task, deadline=deadline)
    if ending.kind == "answered":
        found: Answer = ending.answer
        return found
    return {"reason": f"{ending.kind}: in phase {ending.phase}, {ending.message}"}

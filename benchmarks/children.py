"""The child processes of the studies: what they inherit, and how a study ends if one of them returns nothing.

Each child computes on one thread. The variable OMP_NUM_THREADS overrides that for code that does not ask torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from conformance.process import child, environment
from conformance.records.plan import Environment, Plan
from conformance.records.tasks import ENVIRONMENT, PLAN, Nothing, PlanRequest, ResultT, Target, TaskT

DEADLINE = 300.0


def observe_environment() -> Environment:
    """The environment, found by a process of its own, so that the fork server does not start yet."""
    return result_of(ENVIRONMENT, Nothing(), DEADLINE, method="spawn")


def plan_of(request: PlanRequest) -> Plan:
    """The plan of a request, made by a process of its own, so that the fork server does not start yet."""
    return result_of(PLAN, request, DEADLINE, method="spawn")


def prepare(known: Environment, cache: Path | None = None, *, compiles_for: tuple[str, ...] = ("cpu",)) -> None:
    """Set what all children inherit: one thread, and the folder of compiled code.

    Args:
        known: the environment, which has a folder of compiled code.
        cache: another folder.
        compiles_for: the device types for which some child compiles.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    environment.prepare_children(cache or environment.cache_of(known), compiles_for=compiles_for)


def result_of(target: Target[TaskT, ResultT], task: TaskT, deadline: float, method: str = "forkserver") -> ResultT:
    """What a child process returns. If it returns nothing, the study ends with the reason."""
    ending = child.run(target, task, deadline=deadline, method=method)
    if ending.result is None:
        sys.exit(ending.message if ending.kind == "refused" else f"{target.function}: {ending.kind}: {ending.message}")
    return ending.result

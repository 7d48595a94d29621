"""Decides whether a stored run can go on: only on the machine, with the software and with the sources of its plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conformance.cache import sources
from conformance.commands.stored import report
from conformance.errors import UsageError
from conformance.judging import resuming
from conformance.process import child
from conformance.records.plan import Environment, Plan, in_words
from conformance.records.tasks import ENVIRONMENT, Nothing, PlanRequest
from conformance.store import run_files

DEADLINE = 300.0
DECIDING = ("torch", "python", "system", "cpu", "cpu_capability", "threads_per_cell", "gpus", "cuda")


def resumed(folder: Path, request: PlanRequest) -> Path:
    """The folder of a stored run that can go on.

    Args:
        folder: as the user named it.
        request: what the user asked for: each source of the stored run that is not of the zoo, and no other.

    Raises:
        UsageError: it is no run folder, other cells were asked for, its sources are not named, or a verdict could
            come out differently than when the run was planned; the message names all that has changed.
    """
    if request.modes or request.precisions or request.devices:
        raise UsageError("--resume takes its cells from the stored run; leave out axes")
    folder = folder.resolve()
    contents = run_files.read(folder)
    report(contents, folder)  # refuses records that contradict each other
    plan = contents.plan
    resuming.refuse_unnamed(folder, plan, request.sources)
    changed = [*_changed_sources(plan), *_changed_environment(plan)]
    if changed:
        raise UsageError(f"{folder} cannot go on, start a new run: {'; '.join(changed)}")
    return folder


def _changed_sources(plan: Plan) -> Iterator[str]:
    for file, then in plan.digests.items():
        now = sources.digest(Path(file))
        if now != then:
            yield f"{file} has changed since it was planned" if now else f"{file} is gone"


def _changed_environment(plan: Plan) -> Iterator[str]:
    method = "spawn" if plan.compiling_modes else "forkserver"  # as for the plan
    ending = child.run(ENVIRONMENT, Nothing(), deadline=DEADLINE, method=method)
    now: Environment | None = ending.result
    if now is None:
        raise UsageError(f"describing this machine: {ending.message}")
    for key in DECIDING:
        was, found = getattr(plan.environment, key), getattr(now, key)
        if was != found:
            yield f"it was made with {key} {in_words(was)}, this is {in_words(found)}"

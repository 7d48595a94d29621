"""Judges one model for `conformance.check`: plans, judges and stores a run in the caller's process, without pytest."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from conformance.commands.compile_cache import compile_cache
from conformance.commands.forecast import Forecast
from conformance.commands.run import make_plan
from conformance.commands.ticker import Ticker
from conformance.errors import StoreError, UsageError
from conformance.judging.executor import Executor
from conformance.process import environment, pool
from conformance.process.child_side import is_child
from conformance.records.convert import to_json
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PlanRequest
from conformance.records.verdicts import Verdict
from conformance.show.progress import Progress
from conformance.store import run_files
from conformance.store.run_files import Contents, Writer

SAVED = "saved"  # the folder of the saved model in a run folder


def refuse_in_child() -> None:
    """Refuse to judge anything in a process that judges a cell: it imports the person's modules.

    Raises:
        UsageError: this process is one.
    """
    if is_child():
        raise UsageError(
            "check was called while a child process imported your module; put the call into a function, or under "
            'if __name__ == "__main__":'
        )


def judge_request(request: PlanRequest, folder: Path) -> Contents:
    """Judge the cells of a request, several at a time, and store the run.

    Args:
        request: the cells to plan.
        folder: the run folder, which is made.

    Returns:
        What is stored.

    Raises:
        UsageError: the request cannot be planned.
        MachineError: the machine failed.
    """
    plan = make_plan(request)
    kept = environment.references_of(plan.environment)
    with compile_cache(plan) as cache, _variables(cache, plan.compiles_for, references=kept):
        run_files.create(folder, plan)
        writer = Writer(folder)
        try:
            _judge(plan, folder, writer)
        finally:
            writer.close()
    return run_files.read(folder)


def _judge(plan: Plan, folder: Path, writer: Writer) -> None:
    executor = Executor(plan, folder / run_files.REFERENCES)
    forecast = Forecast(run_files.read(folder), folder)
    ticker = Ticker(Progress(forecast.expected, "cell", os.cpu_count() or 1), stream=sys.stderr, only_on_terminal=True)
    jobs = {p.id: partial(_alone, executor, p, ticker.progress, forecast) for p in plan.cells}
    with ticker.beating():
        found = dict(pool.carry_out(jobs))
    _add(writer, (found[planned.id] for planned in plan.cells))


def _alone(executor: Executor, cell: PlannedCell, progress: Progress, forecast: Forecast) -> Verdict:
    progress.started(cell.id, time.monotonic())
    verdict = executor.verdict(cell)
    progress.done(cell.id, forecast.took(verdict), red=verdict.red)
    return verdict


def copy_run(contents: Contents, old: Path, new: Path) -> None:
    """Store a run again in another folder, with what its models were saved in.

    Args:
        contents: the run.
        old: the folder that holds what was saved of the model.
        new: the run folder, which is made.

    Raises:
        FileExistsError: it exists.
        StoreError: it cannot be written.
    """
    kept = new / SAVED

    def moved(path: str) -> str:
        return str(kept / Path(path).relative_to(old)) if Path(path).is_relative_to(old) else path

    plan = contents.plan
    modes = {name: place.moved(moved) for name, place in plan.modes.items()}
    models = {name: replace(model, location=model.location.moved(moved)) for name, model in plan.models.items()}
    run_files.create(new, replace(plan, models=models, modes=modes))
    writer = Writer(new)
    try:
        shutil.copytree(old, kept)
        _add(writer, contents.verdicts.values())
    except OSError as problem:
        raise StoreError(f"{new} cannot be written: {problem}") from problem
    finally:
        writer.close()


def _add(writer: Writer, verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        writer.add(to_json(verdict))


@contextlib.contextmanager
def _variables(cache: Path | None, compiles_for: Collection[str], references: Path | None = None) -> Iterator[None]:
    """Set the variables of child processes, and put those of the caller's process back."""
    wanted = environment.inherited(cache, compiles_for=compiles_for, references=references)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})
        for name in (name for name, value in before.items() if value is None):
            os.environ.pop(name, None)

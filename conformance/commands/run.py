"""`conformance run` and `conformance bench`: plan, judge under pytest, measure the cells that pass, print tables."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.commands.compile_cache import compile_cache
from conformance.commands.output import say
from conformance.errors import UsageError, near_names
from conformance.exit_codes import ExitCode
from conformance.figures.bench_jobs import bench_jobs
from conformance.figures.speed import default_jobs
from conformance.records.cell import model_of
from conformance.records.measurements import Result
from conformance.records.tasks import ENVIRONMENT, PLAN, Nothing, PlanRequest
from conformance.run import child, environment, pool, store
from conformance.run.executor import Executor
from conformance.run.store import Contents
from conformance.show import bench, matrix

PLAN_DEADLINE = 300.0
PLUGIN = "conformance.plugin"  # the name of its entry point too, so it works installed or not
JOBS: dict[str, Callable[[Contents, Executor], dict[str, Callable[[], Result]]]] = {
    "speed": default_jobs,
    "bench": bench_jobs,
}


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        request: the cells to plan.
        measure: "" for nothing, "speed", or "bench".
        resume: the folder of a run to finish; None for a new run.
        folder: the folder in which new runs are stored.
        fresh_cache: compile everything anew.
        expression: only cells whose id matches it, as for pytest's -k.
        workers: number of processes, as for xdist's -n; "" for one per core.
        first: stop at the first red cell.
        further: options that are passed to pytest.
        known: the command's own options; one is suggested if pytest does not know an option.
    """

    request: PlanRequest
    measure: str
    resume: Path | None
    folder: Path
    fresh_cache: bool = False
    expression: str = ""
    workers: str = ""
    first: bool = False
    further: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def run(options: RunOptions) -> int:
    """Start a new run or resume a stored one, and print its report.

    Returns:
        An exit code; never `OK` if a cell is red or has no verdict.

    Raises:
        UsageError: the run cannot be planned or resumed.
    """
    folder = _resumed(options.resume, options.request) if options.resume else _planned(options)
    started = time.monotonic()
    code = _judged_and_measured(options, folder)
    if code == ExitCode.NOTHING_SELECTED:
        say(f"no cell is selected{f' by -k {options.expression!r}' if options.expression else ''}")
    if code in (ExitCode.USAGE, ExitCode.NOTHING_SELECTED) and not options.resume:
        shutil.rmtree(folder)
    else:
        print()  # noqa: T201
        _print_report(folder, time.monotonic() - started)
    return code


def _judged_and_measured(options: RunOptions, folder: Path) -> int:
    """Do everything that is not stored yet."""
    contents = read(folder)
    with compile_cache(contents.plan, fresh=options.fresh_cache) as cache:
        environment.prepare_children(cache, compiles=bool(contents.plan.compiling_modes))
        store.Writer(folder).close()  # refuses a run that another process writes, before anything starts
        try:
            _remove_references(folder)  # those of an earlier session, since the model may have changed
            code = _judge(options, contents, folder) if contents.missing else exit_code(contents)
            if code in (ExitCode.OK, ExitCode.RED) and contents.plan.measure:
                _measure(folder)
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        finally:
            _remove_references(folder)
    return code


def _remove_references(folder: Path) -> None:
    shutil.rmtree(folder / store.REFERENCES, ignore_errors=True)


def _print_report(folder: Path, seconds: float) -> None:
    contents = store.read(folder)
    show(contents, folder, seconds=seconds)
    for path in bench.write_plots(contents, folder) if contents.plan.measure == "bench" else ():
        print(f"plot: {path}")  # noqa: T201


def show(contents: Contents, folder: Path, seconds: float | None = None) -> None:
    """Print the matrix and, if the run is a bench, its measurements."""
    if contents.plan.measure == "bench":
        print(bench.Bench(contents).text(), end="\n\n")  # noqa: T201
    print(matrix.render(contents, seconds=seconds, folder=folder))  # noqa: T201


def read(folder: Path) -> Contents:
    """Read a stored run. If its last line is unfinished, a message on the error stream says so.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged.
    """
    contents = store.read(folder)
    if contents.torn_bytes:
        say(f"{folder / store.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")
    return contents


def exit_code(contents: Contents) -> ExitCode:
    """`OK` if all cells have verdicts and none is red; otherwise `RED`."""
    red = contents.missing or any(v.red for v in contents.verdicts.values())
    return ExitCode.RED if red else ExitCode.OK


def _judge(options: RunOptions, contents: Contents, folder: Path) -> int:
    print(f"judging {len(contents.missing)} cells, stored in {folder}", flush=True)  # noqa: T201
    code = int(pytest.main([*_pytest_arguments(options, contents, folder), *options.further]))
    if code == ExitCode.USAGE:
        for option in options.further:
            near = near_names(option.partition("=")[0], options.known)
            if near:
                say(f"unknown option {option}; did you mean {', '.join(near)}?")
    return code


def _measure(folder: Path) -> None:
    """Take the measurements that are not stored yet, if all cells are judged."""
    contents = store.read(folder)
    if contents.missing:
        return
    executor = Executor(contents.plan, folder / store.REFERENCES)
    jobs = JOBS[contents.plan.measure](contents, executor)
    pending = {name: job for name, job in jobs.items() if name not in contents.results}
    print(f"\ntaking {len(pending)} measurements", flush=True)  # noqa: T201
    writer = store.Writer(folder)
    try:
        for name, result in pool.carry_out(pending):
            writer.add_result(name, result)
            print(matrix.measured_line(store.read(folder), name), flush=True)  # noqa: T201
    finally:
        writer.close()


def _pytest_arguments(options: RunOptions, contents: Contents, folder: Path) -> list[str]:
    models = {model_of(cell) for cell in contents.missing}
    workers = options.workers or str(min(os.cpu_count() or 1, len(models)))
    arguments = [str(folder / store.PLAN), f"--conformance-run={folder}", f"--rootdir={folder}", "-c", os.devnull]
    arguments += ["-qq", "--no-header", "--tb=short", "-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:doctest"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    if workers not in ("0", "1"):
        arguments += ["-n", workers, "--dist=loadscope"]
    if options.expression:
        arguments += ["-k", options.expression]
    return arguments + (["-x"] if options.first else [])


def _planned(options: RunOptions) -> Path:
    """The folder of a new run."""
    request = replace(options.request, all_sizes=options.measure == "bench")
    ending = child.run(PLAN, request, deadline=PLAN_DEADLINE, method="spawn")
    if ending.result is None:
        asked = " ".join(request.sources) or "the zoo"
        raise UsageError(ending.message if ending.kind == "refused" else f"planning {asked}: {ending.message}")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = (options.folder / "runs" / name).resolve()
    store.create(folder, replace(ending.result, measure=options.measure))
    return folder


def _resumed(folder: Path, request: PlanRequest) -> Path:
    """The folder of a stored run, if it was made on this machine with this torch."""
    if request.sources or request.modes or request.precisions or request.devices:
        raise UsageError("--resume takes its cells from the stored run; leave out sources and axes")
    folder = folder.resolve()
    then = store.read(folder).plan.environment
    now = child.run(ENVIRONMENT, Nothing(), deadline=PLAN_DEADLINE, method="spawn").result
    for key in ("torch", "python", "cpu", "gpus"):
        was, found = getattr(then, key), getattr(now, key, None)
        if was != found:
            raise UsageError(f"{folder} was made with {key} {was}, this is {found}")
    return folder

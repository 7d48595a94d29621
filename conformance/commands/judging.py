"""Judges the cells of a run folder under pytest, which is told nothing but what this project tells it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.commands import interrupts
from conformance.commands.forecast import Forecast
from conformance.commands.order import scope_of
from conformance.commands.output import say, tell
from conformance.commands.recorder import Recorder
from conformance.errors import ExitCode, UsageError, near_names
from conformance.judging.attempts import GUILTY
from conformance.one_line import counted
from conformance.records.cell import model_of
from conformance.show.text import printable, visible
from conformance.store import run_files
from conformance.store.run_files import Contents, Writer

PLUGINS = ("xdist.plugin", "conformance.plugin")  # no other is loaded: the person's plugins are for their own tests
NOT_NEEDED = ("cacheprovider", "doctest", "tmpdir")  # they would write files of their own
SMALLEST_CAPACITY = ("0", "1")  # numbers of workers for which no worker is started


@dataclass(frozen=True)
class Choice:
    """How a person wants the cells judged.

    Attributes:
        expression: only cells whose id matches it, as for pytest's -k.
        workers: number of processes, as for xdist's -n; "" for one per core.
        first: stop at the first red cell.
        verbose: print a line for every cell and every measurement.
        plugins: names of pytest plugins to load.
        further: options that are passed to pytest.
        known: the command's own options; one is suggested if pytest does not know an option.
    """

    expression: str = ""
    workers: str = ""
    first: bool = False
    verbose: bool = False
    plugins: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def check_options(choice: Choice) -> None:
    """Refuse options and plugins that pytest does not take, before anything is planned.

    Raises:
        UsageError: it does not take one.
    """
    if not (choice.further or choice.plugins):
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = int(pytest.main(["--markers", *_settings(choice)]))
    if code != ExitCode.OK:
        raise UsageError(_refusal(said.getvalue(), choice))


def judge(choice: Choice, contents: Contents, folder: Path, writer: Writer) -> int:
    """Judge the cells that have no verdict; returns an exit code.

    Args:
        choice: how the person wants them judged.
        contents: what is stored of the run.
        folder: the run folder.
        writer: the writer of the run folder.

    Raises:
        UsageError: pytest does not take the further options, or has no such plugin.
    """
    models = {model_of(cell) for cell in contents.missing}
    judged = f"{counted(len(contents.missing), 'cell')} of {counted(len(models), 'model')}"
    chosen = f"those of {judged} that match -k {choice.expression!r}" if choice.expression else judged
    tell(f"judging {chosen}, stored in {visible(str(folder))}")
    forecast = Forecast(contents, folder)
    workers = _workers(choice, contents, forecast)
    recorder = Recorder(folder, writer, forecast, at_once=workers)
    if not choice.expression:  # pytest knows which cells match, and the forecast is of all
        tell(forecast.opening(workers))
    arguments = _arguments(choice, contents, folder, choice.workers or str(workers))
    with _working_folder_kept(), contextlib.redirect_stderr(io.StringIO()) as said:
        code = int(pytest.main(arguments, plugins=[recorder]))
    if code == ExitCode.USAGE:
        raise UsageError(_refusal(said.getvalue(), choice))
    print(printable(said.getvalue()), end="", file=sys.stderr)  # noqa: T201
    if recorder.problem:
        say(recorder.problem)
        return ExitCode.RED
    if code == ExitCode.INTERRUPTED and not interrupts.received_signal():
        return ExitCode.RED  # -x stopped it
    return code


@contextlib.contextmanager
def _working_folder_kept() -> Iterator[None]:
    """Go back to the working folder afterwards, because pytest leaves for the folder in which it thinks it started."""
    try:
        before = Path.cwd()
    except OSError:  # it was removed
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(before)


def _refusal(said: str, choice: Choice) -> str:
    """Why pytest does not take its arguments, on one line."""
    for option in choice.further:
        near = near_names(option.partition("=")[0], choice.known)
        if near and option in said:
            return f"unknown option {option}; did you mean {', '.join(near)}?"
    lines = [line.strip().removeprefix("ERROR: ") for line in said.splitlines()]
    errors = [line.partition(" error: ")[2] for line in lines if " error: " in line]
    return f"pytest refuses: {next(iter([*errors, *filter(None, lines)]), 'its arguments')}"


def _workers(choice: Choice, contents: Contents, forecast: Forecast) -> int:
    """The number of processes that judge cells at a time: without a choice, no more than save time."""
    if choice.workers.isdecimal():
        return max(int(choice.workers), 1)
    known = {planned.id: planned.cell for planned in contents.plan.cells}
    scopes = {scope_of(known[cell], contents.plan) for cell in contents.missing}
    return min(os.cpu_count() or 1, len(scopes), forecast.workers)


def _arguments(choice: Choice, contents: Contents, folder: Path, workers: str) -> list[str]:
    arguments = [run_files.PLAN, f"--conformance-run={folder}"]
    if os.path.expandvars(folder) == str(folder):  # pytest would expand them, and find no such folder
        arguments.append(f"--rootdir={folder}")
    if workers not in SMALLEST_CAPACITY:
        restarts = GUILTY * len(contents.missing)  # as many as there can be, so that every cell gets its verdict
        arguments += ["-n", workers, "--dist=loadscope", f"--max-worker-restart={restarts}"]
    if choice.expression:
        arguments += ["-k", choice.expression]
    return [*arguments, *_settings(choice)]


def _settings(choice: Choice) -> list[str]:
    """What pytest is told whatever is judged: its plugins, what it should leave out, and what the person adds."""
    settings = ["-c", os.devnull, "--noconftest", "-qq", "--no-header", "--tb=short", "--capture=no"]
    settings += [word for name in PLUGINS for word in ("-p", name)]
    settings += [word for name in NOT_NEEDED for word in ("-p", f"no:{name}")]
    settings += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    settings += ["-x"] if choice.first else []
    settings += ["-v"] if choice.verbose else []
    return [*settings, *(word for name in choice.plugins for word in ("-p", name)), *choice.further]

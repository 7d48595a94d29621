"""Judges the cells of a run folder under pytest, which is told nothing but what this project tells it."""

import contextlib
import io
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.commands import interrupts
from conformance.commands.output import say, tell
from conformance.commands.progress import Progress, Ticker, expected_seconds, opening
from conformance.commands.pytest_items import Recorder
from conformance.commands.stored import exit_code
from conformance.errors import ExitCode, UsageError, near_names
from conformance.one_line import counted
from conformance.records.cell import model_of
from conformance.records.plan import Plan
from conformance.show.text import printable, visible
from conformance.store import run_files
from conformance.store.run_files import Contents, Writer

PLUGINS = ("xdist.plugin", "conformance.plugin")  # no other is loaded: the person's plugins are for their own tests
NOT_NEEDED = ("cacheprovider", "doctest", "tmpdir")  # they would write files of their own
WORKER_SECONDS = 20.0  # of cells that are worth another worker, which imports torch first


@dataclass(frozen=True)
class Choice:
    """How a person wants the cells judged.

    Attributes:
        expression: only cells whose id matches it, as for pytest's -k.
        workers: number of processes, as for xdist's -n; "" for as many as save time.
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
    expected = expected_seconds(contents, folder)
    workers = int(choice.workers) if choice.workers else _useful_workers(expected)
    at_once = max(workers, 1)
    if not choice.expression:  # pytest knows which cells match, and the estimate is of all
        tell(opening(contents.plan, expected, at_once))
    ticker = Ticker(Progress(expected, "cell", at_once), every_line=choice.verbose)
    recorder = Recorder(folder, writer, order(contents.plan, expected, workers), ticker)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = int(pytest.main(_arguments(choice, contents, folder, workers), plugins=[recorder]))
    if code == ExitCode.USAGE:
        raise UsageError(_refusal(said.getvalue(), choice))
    print(printable(said.getvalue()), end="", file=sys.stderr)  # noqa: T201
    if recorder.problem:
        say(recorder.problem)
        return ExitCode.RED
    if code == ExitCode.INTERRUPTED and not interrupts.received_signal():
        return ExitCode.RED  # -x stopped it
    return exit_code(run_files.read(folder)) if code in (ExitCode.OK, ExitCode.RED) else code


def order(plan: Plan, seconds: Mapping[str, float], workers: int) -> list[str]:
    """Cells in the order in which they are judged: those that need no compiler first.

    A quick model for each worker comes first, so that a person soon sees a verdict, and then the longest models.
    The cells come in rounds, one of each model in each. So the first round makes all references, and no worker waits
    until another one has made that of its cell; and the first compiled round compiles what the precisions of a model
    have in common. xdist begins with two cells for each worker; these are of one model.

    Args:
        plan: the plan of the run.
        seconds: about how long each cell to judge will take, by id.
        workers: number of processes that judge cells.
    """
    cells = {one.id: one.cell for one in plan.cells}
    weights: dict[str, float] = {}
    for name, taken in seconds.items():
        weights[cells[name].model] = weights.get(cells[name].model, 0.0) + taken
    quick = sorted(weights, key=weights.__getitem__)[: max(workers, 1)]
    longest = sorted((name for name in weights if name not in quick), key=weights.__getitem__, reverse=True)
    ranks = {model: rank for rank, model in enumerate([*quick, *longest])}
    counts = Counter[tuple[str, bool]]()
    places = {}
    for name in seconds:
        model, compiles = cells[name].model, cells[name].mode in plan.compiling_modes
        number = counts[model, compiles]
        counts[model, compiles] += 1
        places[name] = compiles, number - (number > 0 and not compiles and ranks[model] < workers), ranks[model]
    return sorted(seconds, key=places.__getitem__)


def _useful_workers(expected: Mapping[str, float]) -> int:
    """The number of processes that save time: to start one more takes as long as to judge some cells."""
    return min(os.cpu_count() or 1, len(expected), 1 + int(sum(expected.values()) // WORKER_SECONDS))


def _refusal(said: str, choice: Choice) -> str:
    """Why pytest does not take its arguments, on one line."""
    for option in choice.further:
        meant = near_names(option.partition("=")[0], choice.known)
        if meant and option in said:
            return f"unknown option {option}{meant}"
    lines = [line.strip().removeprefix("ERROR: ") for line in said.splitlines()]
    errors = [line.partition(" error: ")[2] for line in lines if " error: " in line]
    return f"pytest refuses: {next(iter([*errors, *filter(None, lines)]), 'its arguments')}"


def _arguments(choice: Choice, contents: Contents, folder: Path, workers: int) -> list[str]:
    arguments = [f"--conformance-run={folder}"]
    if workers > 1:
        arguments += [*_start_workers(workers), "--dist=load", "--maxschedchunk=1"]
        arguments += [f"--max-worker-restart={len(contents.missing)}"]  # a cell that ends its worker has its verdict
    if choice.expression:
        arguments += ["-k", choice.expression]
    return [*arguments, *_settings(choice)]


def _start_workers(workers: int) -> list[str]:
    """The options that start workers, without the working folder on their path: Python 3.10 knows no PYTHONSAFEPATH."""
    if sys.version_info >= (3, 11):
        return ["-n", str(workers)]
    return [f"--tx={workers}*popen//python={shlex.quote(sys.executable)} -I"]


def _settings(choice: Choice) -> list[str]:
    """What pytest is told whatever is judged: its plugins, what it should leave out, and what the person adds."""
    settings = ["-c", os.devnull, "--noconftest", "-qq", "--no-header", "--tb=short", "--capture=no"]
    settings += [word for name in PLUGINS for word in ("-p", name)]
    settings += [word for name in NOT_NEEDED for word in ("-p", f"no:{name}")]
    settings += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    settings += ["-x"] if choice.first else []
    settings += ["-v"] if choice.verbose else []
    return [*settings, *(word for name in choice.plugins for word in ("-p", name)), *choice.further]

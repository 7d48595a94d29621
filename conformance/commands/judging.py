"""Judges the cells of a run folder under pytest, which is told nothing but what this project tells it.

`conformance.plugin` registers this module in a conformance run only: the cells are items of pytest. pytest or the
workers of pytest-xdist take them; each is judged in a process of its own. The process that has the terminal stores the
verdicts.
"""

import contextlib
import io
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.commands import interrupts, output, progress, stored
from conformance.errors import ChangedError, ExitCode, MachineError, StoreError, UsageError, counted, near_names
from conformance.judging import shrinking
from conformance.judging.executor import Executor
from conformance.process import environment, process_table
from conformance.records.cell import Observation, Verdict, model_of
from conformance.records.convert import from_json, to_json
from conformance.records.plan import Plan, PlannedCell
from conformance.show import matrix
from conformance.show.text import printable, visible
from conformance.store import run_files
from conformance.verdict import judge

PLUGINS = ("xdist.plugin", "conformance.plugin")  # no other is loaded: the person's plugins are for their own tests
NOT_NEEDED = ("cacheprovider", "doctest", "tmpdir")  # they would write files of their own
WORKER_SECONDS = 20.0  # of cells that are worth another worker, which imports torch first
VERDICT = "conformance"  # the name under which an item reports its verdict
CHANGED = "conformance_changed"  # the same of the files that have changed, so that it has none
WORKER_CELLS = "conformance_cells"  # the name under which a worker of xdist is told its cells
CELLS = pytest.StashKey[list[str]]()  # ids of the cells to judge, in order
EXECUTOR = pytest.StashKey[Executor]()
WORKER_DIED = "the process that judges cells died while it judged this one"


@dataclass(frozen=True)
class Choice:
    """How a person wants the cells judged."""

    expression: str = ""  # only cells whose id matches it, as for pytest's -k
    workers: str = ""  # number of processes, as for xdist's -n; "" for as many as save time
    first: bool = False  # stop at the first red cell
    verbose: bool = False  # print a line for every cell and every measurement
    plugins: tuple[str, ...] = ()  # names of pytest plugins to load
    further: tuple[str, ...] = ()  # options that are passed to pytest
    known: tuple[str, ...] = ()  # the command's own; one is suggested if pytest does not know an option


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


def judge_missing(choice: Choice, contents: run_files.Contents, folder: Path, writer: run_files.Writer) -> int:
    """Judge the cells of a run that have no verdict, as a person has chosen; returns an exit code.

    Raises:
        UsageError: pytest does not take the further options, or has no such plugin.
        StoreError: a verdict could not be stored.
    """
    models = {model_of(cell) for cell in contents.missing}
    judged = f"{counted(len(contents.missing), 'cell')} of {counted(len(models), 'model')}"
    chosen = f"those of {judged} that match -k {choice.expression!r}" if choice.expression else judged
    output.tell(f"judging {chosen}, stored in {visible(str(folder))}")
    expected = progress.expected_seconds(contents, folder)
    workers = int(choice.workers) if choice.workers else _useful_workers(expected)
    odd = [word for word in (*sys.argv, *sys.path, str(folder)) if not _is_utf8(word)]
    if workers > 1 and odd:
        output.say(f"one process judges all cells, because several cannot be told {odd[0]!r}, which is not UTF-8")
        workers = 1
    at_once = max(workers, 1)
    if not choice.expression:  # pytest knows which cells match, and the estimate is of all
        output.tell(progress.opening(contents.plan, expected, at_once))
    ticker = progress.Ticker(progress.Progress(expected, "cell", at_once), every_line=choice.verbose)
    recorder = Recorder(folder, writer, order(contents.plan, expected, workers), ticker)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = int(pytest.main(_arguments(choice, contents, folder, workers), plugins=[recorder]))
    if code == ExitCode.USAGE:
        raise UsageError(_refusal(said.getvalue(), choice))
    print(printable(said.getvalue()), end="", file=sys.stderr)  # noqa: T201
    if recorder.problem:
        raise StoreError(recorder.problem)
    if code == ExitCode.INTERRUPTED and not interrupts.received_signal():
        return ExitCode.RED  # -x stopped it
    return stored.exit_code(run_files.read(folder)) if code in (ExitCode.OK, ExitCode.RED) else code


def select(choice: Choice, folder: Path, recorder: "Recorder") -> int:
    """Store which cells match the expression, and judge none; returns an exit code.

    Raises:
        UsageError: pytest does not take the expression.
    """
    arguments = [f"--conformance-run={folder}", "--collect-only", "-k", choice.expression, *_settings(choice)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = int(pytest.main(arguments, plugins=[recorder]))
    if code == ExitCode.USAGE:
        raise UsageError(_refusal(said.getvalue(), choice))
    return code


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


def _is_utf8(word: str) -> bool:
    """Whether pytest-xdist can send a text."""
    try:
        return bool(word.encode()) or not word
    except UnicodeEncodeError:
        return False


def _refusal(said: str, choice: Choice) -> str:
    """Why pytest does not take its arguments, on one line."""
    for option in choice.further:
        meant = near_names(option.partition("=")[0], choice.known)
        if meant and option in said:
            return f"unknown option {option}{meant}"
    lines = [line.strip().removeprefix("ERROR: ") for line in said.splitlines()]
    errors = [line.partition(" error: ")[2] for line in lines if " error: " in line]
    return f"pytest refuses: {next(iter([*errors, *filter(None, lines)]), 'its arguments')}"


def _arguments(choice: Choice, contents: run_files.Contents, folder: Path, workers: int) -> list[str]:
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


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a worker of xdist."""
    told = getattr(config, "workerinput", None)
    if told is not None:
        config.stash[CELLS] = told[WORKER_CELLS]
        process_table.die_with_parent()
        signal.signal(signal.SIGINT, lambda *_: None)  # the process with the terminal answers it
        interrupts.unblock()  # what this process starts can be interrupted


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Make an item of each cell to judge, where they are judged; -k may leave some out. No file is collected."""
    config = session.config
    if config.pluginmanager.has_plugin("dsession"):
        return None  # xdist's workers collect
    folder = Path(config.getoption("--conformance-run"))
    plan = run_files.read_plan(folder)
    environment.use_gpu(plan.gpus)
    config.stash[EXECUTOR] = Executor(plan, folder / run_files.REFERENCES)
    planned = {one.id: one for one in plan.cells}
    session.items = [CellItem.from_parent(session, name=cell, planned=planned[cell]) for cell in config.stash[CELLS]]
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    config.hook.pytest_collection_finish(session=session)
    session.testscollected = len(session.items)
    return True


class CellItem(pytest.Item):
    """One cell."""

    def __init__(self, *, planned: PlannedCell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned

    def runtest(self) -> None:
        """Judge the cell in its own process. A red verdict, or none, makes the item fail with one line."""
        try:
            verdict = shrinking.judge(self.config.stash[EXECUTOR], self.planned)
        except ChangedError as problem:
            self.user_properties.append((CHANGED, problem.files))
            raise pytest.fail.Exception(str(problem), pytrace=False) from None
        except OSError as problem:
            text = str(problem) if isinstance(problem, MachineError) else f"{self.name} was not judged: {problem}"
            raise pytest.fail.Exception(text, pytrace=False) from None
        self.user_properties.append((VERDICT, to_json(verdict)))
        if verdict.red:
            pytest.fail(f"{verdict.status}  {visible(verdict.text)}", pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, no line, and the name of the item, for pytest's reports."""
        return self.path, None, self.name


class Recorder:
    """The plugin of the process that has the terminal: stores verdicts as they are reported.

    Args:
        folder: the run folder.
        writer: its writer.
        cells: ids of the cells to judge, in order. Every worker of xdist must collect the same, also one that replaces
            another.
        ticker: shows how far the run is.

    Attributes:
        problem: why the run was stopped; "" if it was not.
    """

    def __init__(self, folder: Path, writer: run_files.Writer, cells: list[str], ticker: progress.Ticker) -> None:
        self.problem = ""
        self._folder, self._writer, self._cells, self._ticker = folder, writer, cells, ticker
        self._config: pytest.Config | None = None
        self._changed: list[str] = []
        self._judging: list[Any] = []  # what can be told to stop: pytest's session, and xdist's

    def pytest_configure(self, config: pytest.Config) -> None:
        """Give the cells to this process, which judges them if there are no workers."""
        self._config = config
        config.stash[CELLS] = self._cells

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        """Let the workers of xdist start in silence, with SIGINT blocked: this process alone answers the terminal."""
        plugins = session.config.pluginmanager
        self._judging, scheduling = [session], plugins.get_plugin("dsession")
        if scheduling is not None:
            self._judging.append(scheduling)
            scheduling.terminal = None  # it would write over the line that shows how far the run is
            plugins.unregister(name="terminaldistreporter")
        with interrupts.blocked():
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist its cells."""
        node.workerinput[WORKER_CELLS] = self._cells

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Show how far the run is while cells are judged."""
        with self._ticker.beating():
            return (yield)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store which cells -k selects, if this process collects."""
        self._note_selection([item.name for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Store which cells -k selects, if xdist's workers collect."""
        self._note_selection([_cell_of(name) for name in ids])

    def _note_selection(self, names: list[str]) -> None:
        self._ticker.progress.keep(names)
        contents = run_files.read(self._folder)
        chosen = set(names) | set(contents.verdicts)
        if names and chosen != set(contents.selected):
            try:
                self._writer.select([name for name in contents.selected if name in chosen])
            except StoreError as problem:
                self._stop(str(problem))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Let a cell that ends its worker be a CRASH. xdist replaces the worker, and the other cells are judged."""
        (planned,) = (one for one in run_files.read_plan(self._folder).cells if one.id == _cell_of(crashitem))
        verdict = judge(planned.id, Observation("crashed", message=WORKER_DIED), planned.expect)
        report.when = "call"
        report.user_properties.append((VERDICT, to_json(verdict)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store and show a verdict, or which files have changed so that there is none."""
        self.store(_told(report, VERDICT), _told(report, CHANGED) or ())

    def store(self, data: Any, changed: Iterable[str] = ()) -> bool:
        """Store and show a verdict in JSON form, or which files have changed so that there is none; whether it is red.

        Nothing more is stored once something could not be.
        """
        if self.problem:
            return False
        try:
            self._note_changed(changed)
            if data is None:
                return False
            self._writer.add(data)
        except StoreError as problem:
            self._stop(str(problem))
            return False
        verdict: Verdict = from_json(Verdict, data)
        self._ticker.progress.finish(verdict.cell, red=verdict.red)
        if not interrupts.received_signal():
            self._ticker.show(matrix.line(verdict) if verdict.status != "SKIPPED" else "", urgent=verdict.red)
        return verdict.red

    def tell(self, line: str) -> None:
        """Print a line that everybody must see."""
        self._ticker.show(line, urgent=True)

    def _note_changed(self, files: Iterable[str]) -> None:
        for file in (file for file in files if file not in self._changed):
            self._changed.append(file)
            self._writer.note_changed(self._changed)
            self.tell(f"· {visible(file)} has changed: no more cells of it are judged")

    def _stop(self, problem: str) -> None:
        """Judge no more cells, because their verdicts could not be stored. What is stored stands."""
        self.problem = problem
        for judging in self._judging:
            judging.shouldstop = problem

    def pytest_keyboard_interrupt(self) -> None:
        """Let pytest say nothing of an interrupt; the command says what is judged and how to go on."""
        if self._config is not None:
            self._config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the item by its verdict, and print nothing: `pytest_runtest_logreport` prints the line."""
        if _told(report, CHANGED):
            return "changed", "", ""
        data = _told(report, VERDICT)
        if data is not None:
            return data["status"], "", ""
        return ("", "", "") if report.passed else None


def _cell_of(node: str) -> str:
    """The cell's id of an item's."""
    return node.rpartition("::")[2]


def _told(report: pytest.TestReport, what: str) -> Any:
    """What a test report tells under a name, in JSON form, which xdist can send; None if nothing."""
    if report.when != "call":
        return None
    return next((value for name, value in report.user_properties if name == what), None)

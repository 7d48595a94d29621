"""Stores verdicts as pytest reports them, shows how far the run is, and hands the same cells to every worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.commands import interrupts
from conformance.commands.forecast import Forecast
from conformance.commands.order import order
from conformance.commands.stored import exit_code
from conformance.commands.ticker import Ticker
from conformance.commands.workers import Scheduler, StoppedWorkers, keep_working_folder_off_path, shield_from_terminal
from conformance.errors import ExitCode, StoreError
from conformance.judging.attempts import Attempts
from conformance.records.convert import from_json
from conformance.records.verdicts import Verdict
from conformance.show import matrix
from conformance.show.progress import Progress
from conformance.store import run_files
from conformance.store.run_files import Writer

VERDICT = "conformance"  # the name under which an item reports its verdict
CELLS = "conformance_cells"  # the name under which a worker is told its cells
NAME = "conformance-recorder"
QUIET = -2  # pytest's verbosity with the options that `judging` gives; -v raises it
PHASES = ("setup", "call", "teardown")  # of an item; another phase means a dead worker, whose cell starts once more


class Recorder:
    """The plugin of the process that has the terminal.

    Args:
        folder: the run folder.
        writer: its writer.
        forecast: how long the cells will take.
        at_once: number of cells that are judged at a time.

    Attributes:
        cells: ids of the cells to judge, in order. They are fixed here, since a worker that replaces a dead one must
            collect the same cells.
        progress: how far the run is.
        problem: why the run was stopped; "" if it was not.
    """

    def __init__(self, folder: Path, writer: Writer, forecast: Forecast, at_once: int = 1) -> None:
        contents, expected = forecast.contents, forecast.expected
        attempts = Attempts(folder / run_files.STARTED)
        self.cells = order(contents.missing, contents.plan, attempts, {name: s for name, (_, s) in expected.items()})
        self.progress = Progress(expected, "cell", at_once)
        self.problem = ""
        self._forecast = forecast
        self._folder = folder
        self._writer = writer
        self._ticker = Ticker(self.progress)
        self._config: pytest.Config | None = None
        self._session: pytest.Session | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the configuration."""
        self._config = config
        self._ticker = Ticker(self.progress, every_line=config.option.verbose > QUIET)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Prepare the start of the workers, also of those that replace others."""
        scheduling: Any = config.pluginmanager.get_plugin("dsession")
        reporter: Any = config.pluginmanager.get_plugin("terminaldistreporter")
        if reporter is not None:
            reporter.ensure_show_status = lambda: None  # it would say twice that workers start
            reporter.rewrite = lambda *_, **__: None  # and over the line that shows how far the run is
        keep_working_folder_off_path()
        shield_from_terminal(scheduling.nodemanager.group)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist its cells."""
        node.workerinput[CELLS] = list(self.cells)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Let xdist use a scheduler that copes with dead workers."""
        return Scheduler(config, log) if config.getoption("dist") == "loadscope" else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Watch the workers while they judge."""
        self._session = session
        with StoppedWorkers(), self._ticker.beating():
            return (yield)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a cell is being judged."""
        self.progress.started(nodeid.rpartition("::")[2], time.monotonic())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store which cells -k selects, if this process collects."""
        self._note_selection([item.name for item in session.items if hasattr(item, "planned")])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002
        """Store which cells -k selects, if xdist's workers collect."""
        self._note_selection([name.rpartition("::")[2] for name in ids])

    def _note_selection(self, names: list[str]) -> None:
        self.progress.keep(names)
        contents = run_files.read(self._folder)
        chosen = set(names) | set(contents.verdicts)
        if names and chosen != set(contents.selected):
            try:
                self._writer.select([name for name in contents.selected if name in chosen])
            except StoreError as problem:
                self._stop(str(problem))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store and show a verdict."""
        data = verdict_of(report)
        if data is None or self.problem:
            return
        try:
            self._writer.add(data)
        except StoreError as problem:
            self._stop(str(problem))
            return
        verdict: Verdict = from_json(Verdict, data)
        self.progress.done(verdict.cell, self._forecast.took(verdict), red=verdict.red)
        if not interrupts.received_signal():
            self._ticker.show(matrix.line(verdict) if verdict.status != "SKIPPED" else "", urgent=verdict.red)

    def _stop(self, problem: str) -> None:
        """Judge no more cells, because their verdicts could not be stored. What is stored stands."""
        self.problem = problem
        scheduler = self._config.pluginmanager.get_plugin("dsession") if self._config else None
        for judging in (self._session, scheduler):
            if judging is not None:
                judging.shouldstop = problem

    def pytest_keyboard_interrupt(self) -> None:
        """Let pytest say nothing of an interrupt; the command says what is judged and how to go on."""
        if self._config is not None:
            self._config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the item by its verdict, and print nothing: `pytest_runtest_logreport` prints the line."""
        data = verdict_of(report)
        if data is not None:
            return data["status"], "", ""
        return ("", "", "") if report.passed or report.when not in PHASES else None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Let the verdicts decide the exit code. A worker that died and was replaced does not make a run red."""
        if exitstatus in (ExitCode.OK, ExitCode.RED):
            session.exitstatus = exit_code(run_files.read(self._folder))


def verdict_of(report: pytest.TestReport) -> dict[str, Any] | None:
    """The verdict of a test report in JSON form, which xdist can send; None if it has none."""
    if report.when != "call":
        return None
    return next((value for name, value in report.user_properties if name == VERDICT), None)  # type: ignore[return-value]

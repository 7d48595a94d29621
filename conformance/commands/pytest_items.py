"""The cells of a run folder as items of pytest, and what becomes of their verdicts.

`conformance.plugin` loads this in a conformance run only. pytest or the workers of pytest-xdist take the items; each
judges one cell, in a process of its own. The process that has the terminal stores the verdicts.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.commands import interrupts
from conformance.commands.progress import Ticker
from conformance.errors import MachineError, StoreError
from conformance.judging.executor import Executor
from conformance.process import process_table
from conformance.records.convert import from_json, to_json
from conformance.records.observation import Observation
from conformance.records.plan import PlannedCell
from conformance.records.verdicts import Verdict
from conformance.show import matrix
from conformance.show.text import visible
from conformance.store import run_files
from conformance.store.run_files import Writer
from conformance.verdict import judge

VERDICT = "conformance"  # the name under which an item reports its verdict
WORKER_CELLS = "conformance_cells"  # the name under which a worker of xdist is told its cells
CELLS = pytest.StashKey[list[str]]()  # ids of the cells to judge, in order
EXECUTOR = pytest.StashKey[Executor]()
WORKER_DIED = "the process that judges cells died while it judged this one"


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
    plan = run_files.read(folder).plan
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
            verdict = self.config.stash[EXECUTOR].verdict(self.planned)
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

    def __init__(self, folder: Path, writer: Writer, cells: list[str], ticker: Ticker) -> None:
        self.problem = ""
        self._folder, self._writer, self._cells, self._ticker = folder, writer, cells, ticker
        self._config: pytest.Config | None = None
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
        (planned,) = (one for one in run_files.read(self._folder).plan.cells if one.id == _cell_of(crashitem))
        verdict = judge(planned.id, Observation("crashed", message=WORKER_DIED), planned.expect)
        report.when = "call"
        report.user_properties.append((VERDICT, to_json(verdict)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store and show a verdict."""
        data = _verdict_of(report)
        if data is None or self.problem:
            return
        try:
            self._writer.add(data)
        except StoreError as problem:
            self._stop(str(problem))
            return
        verdict: Verdict = from_json(Verdict, data)
        self._ticker.progress.finish(verdict.cell, red=verdict.red)
        if not interrupts.received_signal():
            self._ticker.show(matrix.line(verdict) if verdict.status != "SKIPPED" else "", urgent=verdict.red)

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
        data = _verdict_of(report)
        if data is not None:
            return data["status"], "", ""
        return ("", "", "") if report.passed else None


def _cell_of(node: str) -> str:
    """The cell's id of an item's."""
    return node.rpartition("::")[2]


def _verdict_of(report: pytest.TestReport) -> dict[str, Any] | None:
    """The verdict of a test report in JSON form, which xdist can send; None if it has none."""
    if report.when != "call":
        return None
    return next((value for name, value in report.user_properties if name == VERDICT), None)  # type: ignore[return-value]

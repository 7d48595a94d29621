"""Lets pytest collect a run folder's plan like a test file, with an item per cell.

`conformance.plugin` loads this in a conformance run only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance.commands.forecast import Forecast
from conformance.commands.order import scope_of
from conformance.commands.recorder import CELLS, NAME, VERDICT, Recorder
from conformance.commands.workers import serve_main_process
from conformance.errors import MachineError, StoreError, UsageError
from conformance.judging.attempts import GUILTY, Attempts
from conformance.judging.executor import Executor
from conformance.records.convert import to_json
from conformance.records.observation import Observation
from conformance.records.plan import PlannedCell
from conformance.records.verdicts import Verdict
from conformance.show.text import visible
from conformance.store import run_files
from conformance.verdict import judge

TOOK_DOWN = "took the run down twice: each time it ran, the process that judges cells died"
EXECUTOR = pytest.StashKey[Executor]()
ATTEMPTS = pytest.StashKey[Attempts]()


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process: a worker of xdist, or the one that has the terminal."""
    folder = _folder(config)
    if config.args == [run_files.PLAN]:  # given by name, because pytest cannot read every path as an argument
        config.invocation_params = dataclasses.replace(config.invocation_params, dir=folder)
    if hasattr(config, "workerinput"):
        serve_main_process()
    elif not any(isinstance(plugin, Recorder) for plugin in config.pluginmanager.get_plugins()):
        writer = run_files.Writer(folder)
        config.add_cleanup(writer.close)
        config.pluginmanager.register(Recorder(folder, writer, Forecast(run_files.read(folder), folder)), NAME)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a run folder's plan as a test file."""
    if file_path == _folder(parent.config) / run_files.PLAN:
        return PlanFile.from_parent(parent, path=file_path)
    return None


def _folder(config: pytest.Config) -> Path:
    return Path(config.getoption("--conformance-run"))


def _cells(config: pytest.Config) -> list[str]:
    """Ids of the cells to judge, as the process with the terminal decided."""
    if hasattr(config, "workerinput"):
        return list(config.workerinput[CELLS])
    recorders = [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, Recorder)]
    return list(recorders[0].cells)


class PlanFile(pytest.File):
    """The plan as a test file: its cells to judge, grouped by what one worker takes."""

    def collect(self) -> Iterable[pytest.Collector]:
        """The scopes that have cells to judge."""
        folder = self.path.parent
        try:
            plan = run_files.read(folder).plan
            self.config.stash[EXECUTOR] = Executor(plan, folder / run_files.REFERENCES)
        except UsageError as problem:
            raise self.CollectError(str(problem)) from None
        self.config.stash[ATTEMPTS] = Attempts(folder / run_files.STARTED)
        known, scopes = {planned.id: planned for planned in plan.cells}, dict[str, list[PlannedCell]]()
        for cell in _cells(self.config):
            scopes.setdefault(scope_of(known[cell].cell, plan), []).append(known[cell])
        for name, cells in scopes.items():
            yield Scope.from_parent(self, name=name, cells=cells)


class Scope(pytest.Collector):
    """Cells that xdist gives to one worker together; see `order.scope_of`."""

    def __init__(self, *, cells: list[PlannedCell], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cells = cells

    def collect(self) -> Iterable[pytest.Item]:
        """One item per cell to judge."""
        for planned in self._cells:
            yield CellItem.from_parent(self, name=planned.id, planned=planned)


class RedError(Exception):
    """A red verdict, which makes the item fail."""


class CellItem(pytest.Item):
    """One cell."""

    def __init__(self, *, planned: PlannedCell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned

    def runtest(self) -> None:
        """Judge the cell in its own process."""
        verdict = self._verdict()
        self.user_properties.append((VERDICT, to_json(verdict)))
        if verdict.red:
            raise RedError(f"{verdict.status}  {visible(verdict.text)}")
        if verdict.status != "PASS":
            pytest.skip(visible(verdict.reason or verdict.text))

    def _verdict(self) -> Verdict:
        attempts, cell = self.config.stash[ATTEMPTS], self.planned.id
        try:
            if attempts.lost(cell) >= GUILTY:
                attempts.forget(cell)
                return judge(cell, Observation("crashed", message=TOOK_DOWN), self.planned.expect)
            with attempts.attempt(cell):
                return self.config.stash[EXECUTOR].verdict(self.planned)
        except MachineError as problem:  # it says what was not judged or made
            raise StoreError(str(problem)) from problem
        except OSError as problem:
            raise StoreError(f"{cell} was not judged: {problem.strerror or problem}") from problem

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """One line for a red verdict, or for a cell that could not be judged."""
        if isinstance(excinfo.value, (RedError, StoreError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, no line, and the name of the item, for pytest's reports."""
        return self.path, None, self.name

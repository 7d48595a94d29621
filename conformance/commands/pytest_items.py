"""Lets pytest collect a run folder's plan like a test file, with a scope per model and an item per cell.

`conformance.plugin` loads this in a conformance run only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance.commands.run import exit_code
from conformance.exit_codes import ExitCode
from conformance.records.convert import from_json, to_json
from conformance.records.plan import PlannedCell
from conformance.records.verdicts import Verdict
from conformance.run import store
from conformance.run.executor import Executor
from conformance.show import matrix
from conformance.show.text import printable

EXECUTOR = pytest.StashKey[Executor]()
VERDICT = "conformance"


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder, only in the process that has the terminal."""
    if not hasattr(config, "workerinput"):
        recorder = ResultRecorder(config, Path(config.getoption("--conformance-run")))
        config.pluginmanager.register(recorder, "conformance-recorder")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a run folder's plan as a test file."""
    if file_path == Path(parent.config.getoption("--conformance-run")) / store.PLAN:
        return PlanFile.from_parent(parent, path=file_path)
    return None


class PlanFile(pytest.File):
    """The plan as a test file: its cells without a verdict, grouped by model."""

    def collect(self) -> Iterable[pytest.Collector]:
        """One scope for each model with cells to judge."""
        contents = store.read(self.path.parent)
        self.config.stash[EXECUTOR] = Executor(contents.plan, self.path.parent / store.REFERENCES)
        missing, models = set(contents.missing), dict[str, list[PlannedCell]]()
        for planned in contents.plan.cells:
            if planned.id in missing:
                models.setdefault(planned.cell.model, []).append(planned)
        for model, cells in models.items():
            yield ModelScope.from_parent(self, name=model, cells=cells)


class ModelScope(pytest.Collector):
    """One model. xdist keeps a scope on one worker, so its cells share the model's reference."""

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
        verdict = self.config.stash[EXECUTOR].verdict(self.planned)
        self.user_properties.append((VERDICT, to_json(verdict)))
        if verdict.red:
            raise RedError(f"{verdict.status}  {verdict.text}")
        if verdict.status != "PASS":
            pytest.skip(verdict.reason or verdict.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """One line for a red verdict."""
        if isinstance(excinfo.value, RedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The file, no line, and the name of the item, for pytest's reports."""
        return self.path, None, self.name


class ResultRecorder:
    """Stores the verdicts as they arrive, and prints a line for each."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._writer = store.Writer(folder)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Store which cells -k selects, if this process collects."""
        self._note_selection([item.name for item in session.items if isinstance(item, CellItem)])

    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002
        """Store which cells -k selects, if xdist's workers collect."""
        self._note_selection([name.rpartition("::")[2] for name in ids])

    def _note_selection(self, names: list[str]) -> None:
        contents = store.read(self._folder)
        chosen = set(names) | set(contents.verdicts)
        if names and chosen != set(contents.selected):
            self._writer.select([name for name in contents.selected if name in chosen])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store and show a verdict."""
        data = _verdict_of(report)
        if data is not None:
            self._writer.add(data)
            verdict: Verdict = from_json(Verdict, data)
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None and verdict.status != "SKIPPED":
                terminal.write_line(printable(matrix.line(verdict)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count the item by its verdict, and print nothing: `pytest_runtest_logreport` prints the line."""
        data = _verdict_of(report)
        if data is not None:
            return data["status"], "", ""
        return ("", "", "") if report.passed else None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The exit code of an incomplete or red run is never 0."""
        if exitstatus == ExitCode.OK:
            session.exitstatus = exit_code(store.read(self._folder))

    def pytest_unconfigure(self) -> None:
        """Release the run folder, so that other processes can write to it."""
        self._writer.close()


def _verdict_of(report: pytest.TestReport) -> dict[str, Any] | None:
    """The verdict of a test report in JSON form, which xdist can send; None if it has none."""
    if report.when != "call":
        return None
    return next((value for name, value in report.user_properties if name == VERDICT), None)  # type: ignore[return-value]

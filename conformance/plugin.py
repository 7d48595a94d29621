"""The pytest plugin: a run folder's plan is collected like a test file, a scope per model, an item per cell.

Inert without `--conformance-run`, and light: torch is imported only in the cells' own processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance import store, table
from conformance.execution import Execution
from conformance.records import Verdict

EXECUTION = pytest.StashKey[Execution]()
VERDICT = "conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the one option; `conformance run` sets it."""
    parser.getgroup("conformance").addoption(
        "--conformance-run", metavar="FOLDER", help="judge the cells of this run folder's plan"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a conformance run; keep the records where the terminal is."""
    folder = config.getoption("--conformance-run")
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Keeper(config, Path(folder)), "conformance-keeper")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A run folder's plan is a test file."""
    folder = parent.config.getoption("--conformance-run")
    if folder and file_path == Path(folder) / store.PLAN:
        return PlanFile.from_parent(parent, path=file_path)
    return None


class PlanFile(pytest.File):
    """The plan; its cells without a verdict, by model."""

    def collect(self) -> Iterable[pytest.Collector]:
        """One scope for each model with cells to judge."""
        contents = store.read(self.path.parent)
        self.config.stash[EXECUTION] = Execution(contents.plan, self.path.parent / store.REFERENCES)
        missing, models = set(contents.missing), dict[str, list[dict[str, Any]]]()
        for planned in contents.plan["cells"]:
            if store.cell_id(planned) in missing:
                models.setdefault(planned["model"], []).append(planned)
        for model, cells in models.items():
            yield ModelScope.from_parent(self, name=model, cells=cells)


class ModelScope(pytest.Collector):
    """One model: xdist keeps a scope on one worker, and its cells share the model's reference."""

    def __init__(self, *, cells: list[dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cells = cells

    def collect(self) -> Iterable[pytest.Item]:
        """One item per cell to judge."""
        for planned in self._cells:
            yield CellItem.from_parent(self, name=store.cell_id(planned), planned=planned)


class RedError(Exception):
    """A red verdict, as pytest wants to hear it."""


class CellItem(pytest.Item):
    """One cell."""

    def __init__(self, *, planned: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.planned = planned

    def runtest(self) -> None:
        """Judge the cell in its own process."""
        verdict = self.config.stash[EXECUTION].verdict(self.planned)
        self.user_properties.append((VERDICT, verdict.to_json()))
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
        """Where the item stands, for reports."""
        return self.path, None, self.name


class Keeper:
    """Stores the verdicts as they come, prints a line for each."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._writer = store.Writer(folder)
        self._started = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note a choice made with -k, where this process collects itself."""
        self._note_selection([item.name for item in session.items if isinstance(item, CellItem)])

    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002
        """The same, where xdist's workers collect."""
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
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None and data["status"] != "SKIPPED":
                terminal.write_line(table.line(Verdict.from_json(data)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count by verdict, print nothing: the line above has said it."""
        data = _verdict_of(report)
        if data is not None:
            return data["status"], "", ""
        return ("", "", "") if report.passed else None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A complete run says so; an incomplete or red one is never exit code 0."""
        contents = store.read(self._folder)
        if not contents.missing:
            seconds = round(time.monotonic() - self._started, 1)
            self._writer.finish({"cells": len(contents.selected), "seconds": seconds})
        if exitstatus == pytest.ExitCode.OK and (contents.missing or any(v.red for v in contents.verdicts.values())):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Let others write the run."""
        self._writer.close()


def _verdict_of(report: pytest.TestReport) -> dict[str, Any] | None:
    if report.when != "call":
        return None
    return next((value for name, value in report.user_properties if name == VERDICT), None)  # type: ignore[return-value]

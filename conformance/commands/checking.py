"""Judges one model for `conformance.check`, in the caller's process and without pytest, and reports the verdicts."""

import html
import json
import os
import shutil
import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from conformance.commands.explain import explain_cell
from conformance.commands.planning import children_prepared, make_plan
from conformance.commands.progress import Progress, Ticker, expected_seconds
from conformance.commands.repro import reproduce
from conformance.commands.stored import exit_code
from conformance.errors import ExitCode, StoreError, UsageError
from conformance.judging.executor import Executor
from conformance.process import pool
from conformance.records.cell import Verdict
from conformance.records.convert import to_json
from conformance.records.plan import Plan
from conformance.records.tasks import PlanRequest
from conformance.show import matrix, page
from conformance.show.text import printable
from conformance.store import run_files

SAVED = "saved"  # the folder of the saved model in a run folder
FRAME = '<iframe srcdoc="{}" sandbox style="width:100%;height:{}px;border:0"></iframe>'  # so that no style leaks
FRAME_HEIGHT, ROW_HEIGHT = (260, 640), 38  # in pixels: the least and the most, and of a row


def judge_request(request: PlanRequest, folder: Path) -> run_files.Contents:
    """Judge the cells of a request, several at a time, and store the run in a new folder; returns what is stored.

    Raises:
        UsageError: the request cannot be planned.
        MachineError: the machine failed.
    """
    plan = make_plan(request)
    with children_prepared(plan, compiles_for=plan.compiles_for):
        run_files.create(folder, plan)
        found = _judge(plan, folder)
    _store(folder, (found[planned.id] for planned in plan.cells))
    return run_files.read(folder)


def _judge(plan: Plan, folder: Path) -> dict[str, Verdict]:
    executor = Executor(plan, folder / run_files.REFERENCES)
    progress = Progress(expected_seconds(run_files.read(folder), folder), "cell", os.cpu_count() or 1)
    found: dict[str, Verdict] = {}
    with Ticker(progress, aside=True).beating():
        for name, verdict in pool.carry_out({one.id: partial(executor.verdict, one) for one in plan.cells}):
            found[name] = verdict
            progress.finish(name, red=verdict.red)
    return found


def _store(folder: Path, verdicts: Iterable[Verdict]) -> None:
    writer = run_files.Writer(folder)
    try:
        for verdict in verdicts:
            writer.add(to_json(verdict))
    finally:
        writer.close()


class NotConformingError(AssertionError):
    """A cell of the report is red. The message is the report."""

    __module__ = "conformance"  # the public name, which pytest shows


class Report:
    """What was found out about one model.

    Args:
        contents: the stored run.
        folder: a folder that holds the run and what was saved of the model. It is removed with the report.

    Attributes:
        cells: the verdict on each cell, in the order of the table.
        assumed: the contracts that were assumed of the model, a line each.
    """

    def __init__(self, contents: run_files.Contents, folder: Path) -> None:
        self._contents, self._folder = contents, folder
        self.cells: tuple[Verdict, ...] = tuple(contents.verdicts[name] for name in contents.selected)
        self.assumed: tuple[str, ...] = tuple(line for model in contents.plan.models.values() for line in model.assumed)
        self._removed = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def ok(self) -> bool:
        """Whether every cell is as expected, and not all of them were skipped."""
        return exit_code(self._contents) == ExitCode.OK

    def table(self) -> str:
        """The matrix, a line for every red cell, and the assumed contracts."""
        return printable(matrix.render(self._contents, folder=None))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        red = sum(cell.red for cell in self.cells)
        return f"<Report on {next(iter(self._contents.plan.models))}: {len(self.cells)} cells, {red} red>"

    def _repr_html_(self) -> str:
        least, most = FRAME_HEIGHT
        height = min(least + ROW_HEIGHT * len(self.cells), most)
        return FRAME.format(html.escape(self._page(compact=True)), height)

    def to_html(self) -> str:
        """One page of HTML, as `conformance show RUN --html` writes it."""
        return self._page(compact=False)

    def _page(self, *, compact: bool) -> str:
        return page.draw(self._contents, folder=None, green=self.ok, compact=compact)

    def to_json(self) -> str:
        """The plan and all verdicts, with everything that was observed, as JSON; its schema is docs/run.schema.json."""
        contents = self._contents
        return json.dumps({"ok": self.ok, "plan": to_json(contents.plan), "verdicts": [to_json(c) for c in self.cells]})

    def explain(self, cell: str) -> str:
        """Where and why a cell is red, and what mends it, as `conformance explain` prints it.

        Args:
            cell: its id, such as "my_net[compiled-fp32-cpu]".

        Raises:
            UsageError: the report has no such cell.
            MachineError: the machine failed.
        """
        return explain_cell(self._contents, cell)

    def to_records(self) -> list[dict[str, str | float | None]]:
        """A row for each cell, with which `pandas.DataFrame` or `polars.DataFrame` makes a table.

        Each has the same keys, and None where there is nothing: model, mode, precision, device, status, gate, tensor,
        case, margin, value, budget, text, seconds, speed_up (over eager fp32) and torch. The value and its budget are
        those of the gate and the tensor that the line of a red cell names; of another cell, the nearest to a budget.
        """
        return matrix.rows(self._contents)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Keep the run, as `conformance show` and `diff` read it.

        Args:
            folder: the run folder; it must not exist.

        Returns:
            Its absolute path.

        Raises:
            UsageError: it exists, or cannot be written.
        """
        path = Path(folder).resolve()
        try:
            _copy_run(self._contents, self._folder / SAVED, path)
        except FileExistsError:
            raise UsageError(f"{path} exists; name a folder that does not") from None
        return path

    def repro(self, cell: str) -> Path:
        """Write a script of torch alone that shows why a cell is red, as `conformance repro` does.

        Args:
            cell: id of the cell, such as "gate[scripted-amp_fp16-cpu]".

        Returns:
            The path of the script, in the working folder.

        Raises:
            UsageError: there is no such cell, it is not red, or the script does not show it.
            MachineError: the machine failed.
        """
        made = reproduce(self._contents, cell)
        if made.path is None:
            raise UsageError(f"{cell}: its script did not show the fault; it printed: {made.printed}")
        return made.path

    def raise_if_failed(self) -> None:
        """Raise an error if a cell is red.

        Raises:
            NotConformingError: one is; the message is the table.
        """
        __tracebackhide__ = True  # pytest shows the caller's line
        if not self.ok:
            raise NotConformingError(f"\n{self.table()}")


def _copy_run(contents: run_files.Contents, old: Path, new: Path) -> None:
    """Store a run again in a new folder, with the old folder of what was saved of the model.

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
    digests = {moved(path): digest for path, digest in plan.digests.items()}
    run_files.create(new, replace(plan, models=models, modes=modes, digests=digests))
    try:
        shutil.copytree(old, kept)
    except OSError as problem:
        raise StoreError(f"{new} cannot be written: {problem}") from problem
    _store(new, contents.verdicts.values())

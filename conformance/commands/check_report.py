"""The report that `conformance.check` returns: a stored run of one model, as text, as JSON and as HTML."""

from __future__ import annotations

import html
import json
import os
import shutil
import weakref
from pathlib import Path

from conformance.commands import checking
from conformance.commands.stored import exit_code
from conformance.errors import ExitCode, UsageError
from conformance.records.convert import to_json
from conformance.records.verdicts import Verdict
from conformance.show import matrix
from conformance.show.text import printable
from conformance.store.run_files import Contents

LARGEST_HTML = 50_000  # characters: a notebook keeps every output


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

    def __init__(self, contents: Contents, folder: Path) -> None:
        self._contents, self._folder = contents, folder
        self.cells: tuple[Verdict, ...] = tuple(contents.verdicts[name] for name in contents.selected)
        self.assumed: tuple[str, ...] = tuple(line for lines in contents.plan.assumed.values() for line in lines)
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
        text = self.table()
        cut = "" if len(text) <= LARGEST_HTML else "\n… print(report) shows the rest"
        return f"<pre>{html.escape(text[:LARGEST_HTML])}{cut}</pre>"

    def to_json(self) -> str:
        """The plan and all verdicts, with everything that was observed, as JSON."""
        contents = self._contents
        return json.dumps({"ok": self.ok, "plan": to_json(contents.plan), "verdicts": [to_json(c) for c in self.cells]})

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
            checking.copy_run(self._contents, self._folder / checking.SAVED, path)
        except FileExistsError:
            raise UsageError(f"{path} exists; name a folder that does not") from None
        return path

    def raise_if_failed(self) -> None:
        """Raise an error if a cell is red.

        Raises:
            NotConformingError: one is; the message is the table.
        """
        __tracebackhide__ = True  # pytest shows the caller's line
        if not self.ok:
            raise NotConformingError(f"\n{self.table()}")

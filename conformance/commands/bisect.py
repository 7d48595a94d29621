"""`conformance bisect`: judges one cell with several versions of torch, and tells between which its verdict changed."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.version import Version

from conformance.commands import github, other_torch
from conformance.commands.bisection import Row, findings, search, versions
from conformance.commands.output import progress, say, tell
from conformance.commands.run import planned
from conformance.errors import NotInstalledError, UsageError, suggestion
from conformance.exit_codes import ExitCode
from conformance.one_line import one_line
from conformance.records.cell import Cell
from conformance.records.plan import Environment
from conformance.records.tasks import PlanRequest
from conformance.records.verdicts import STATUSES, Verdict
from conformance.show.matrix import figure
from conformance.show.text import markdown_table, visible
from conformance.store import run_files
from conformance.torch_versions import VERSIONS

CELL = re.compile(r"(?:(.+)::)?([\w.]+(?:@\w+)?)\[(\w+)-(\w+)-(\w+)\]", re.ASCII)
START = "import sys; sys.path[:] = filter(None, sys.path); from conformance.__main__ import main; sys.exit(main())"
FOR_THIS_COMMAND = (github.SUMMARY, github.ACTIONS)  # of GitHub: no run of one version speaks for the step


@dataclass(frozen=True)
class Bisection:
    """What a person asks for.

    Attributes:
        source: a source, as for `run`.
        cell: the cell of it.
        versions: the versions of torch, in order.
        every: try all of them.
        keep: keep the environments.
        others: what else to install, in words of pip.
    """

    source: str
    cell: Cell
    versions: tuple[str, ...]
    every: bool = False
    keep: bool = False
    others: tuple[str, ...] = ()


def asked(cell: str, torch: str, *, every: bool, keep: bool, others: tuple[str, ...]) -> Bisection:
    """What the words of the command line ask for.

    Raises:
        UsageError: a word cannot be read.
    """
    found = CELL.fullmatch(cell)
    if not found:
        raise UsageError(
            f"bisect {cell}: want MODEL[MODE-PRECISION-DEVICE], such as merge[compiled-amp_fp16-cpu] or "
            "nets.py::gate[eager-fp32-cpu]"
        )
    source, model, *axes = found.groups()
    return Bisection(source or model, Cell(model, *axes), versions(torch, VERSIONS), every, keep, others)


def main(wanted: Bisection, folder: Path) -> int:
    """Judge the cell with the versions, each in an environment of its own, and print the table.

    Args:
        wanted: what to judge.
        folder: the folder for runs.

    Returns:
        An exit code: `OK` if the cell was judged and is not red with each version that was tried.

    Raises:
        UsageError: this torch cannot plan the cell, or nothing can be stored.
    """
    environment = _check(wanted)
    place = (folder / "bisect" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}").resolve()
    try:
        code = other_torch.copy_code(place / "code")
    except (OSError, shutil.Error) as problem:
        raise UsageError(f"{place} cannot be written: {one_line(problem)}") from None
    rows: list[Row] = []
    interrupted = False
    try:
        for row in search(wanted.versions, partial(_row, wanted, place, code), every=wanted.every):
            rows.append(row)
            progress(f"torch {row.version}: {row.verdict or 'not judged'}  {row.detail}")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        tell(report(wanted, environment, rows))
        tell(f"\nruns stored in {visible(str(place))}")
        _remove(code, wanted)
    if interrupted:
        return ExitCode.INTERRUPTED
    green = all(row.verdict and not STATUSES[row.verdict].red for row in rows)
    return ExitCode.OK if green else ExitCode.RED


def report(wanted: Bisection, known: Environment, rows: list[Row]) -> str:
    """The table of versions in Markdown, as one pastes it into an issue, and what follows from it."""
    ordered = sorted(rows, key=lambda row: wanted.versions.index(row.version))
    body = [[row.version, _word(row.verdict), row.detail] for row in ordered]
    head = f"{wanted.cell.id} · Python {known.python} · {known.system} · {known.cpu} {known.cpu_capability}"
    table = markdown_table(body, ["torch", "verdict", "margin or reason"])
    return "\n".join([visible(head), "", table, "", *findings(rows, wanted.versions)])


def _word(verdict: str) -> str:
    return f"{STATUSES[verdict].glyph} {verdict}" if verdict else "not judged"


def _check(wanted: Bisection) -> Environment:
    """Plan the cell with the torch of this command; returns its environment.

    Raises:
        UsageError: there is no such cell.
    """
    plan = planned(_request(wanted))
    known = [cell.id for cell in plan.cells]
    if wanted.cell.id not in known:
        raise UsageError(f"{wanted.source} has no cell {wanted.cell.id}{suggestion(wanted.cell.id, known)}")
    return plan.environment


def _request(wanted: Bisection) -> PlanRequest:
    cell = wanted.cell
    return PlanRequest((wanted.source,), (cell.mode,), (cell.precision,), (cell.device,))


def _row(wanted: Bisection, place: Path, code: Path, version: str) -> Row:
    """Make the environment of a version, judge the cell in it, and remove it unless it is kept."""
    own, environment = place / version, place / version / "environment"
    try:
        own.mkdir()
        progress(f"torch {version}: installing")
        python = other_torch.make(environment, version, wanted.others)
        progress(f"torch {version}: judging")
        return _judged(wanted, own, code, python, version)
    except (NotInstalledError, UsageError) as problem:
        return Row(version, "", one_line(problem))
    except OSError as problem:
        return Row(version, "", f"this machine failed: {problem.strerror or problem}")
    finally:
        _remove(environment, wanted)
        with contextlib.suppress(OSError):
            own.rmdir()  # if it holds nothing


def _remove(folder: Path, wanted: Bisection) -> None:
    """Remove a folder unless everything is to be kept."""
    if not wanted.keep:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            say(f"{folder} could not be removed")


def _judged(wanted: Bisection, own: Path, code: Path, python: Path, version: str) -> Row:
    """Judge the cell with the Python of an environment.

    Raises:
        UsageError: what was stored cannot be read.
    """
    cell = wanted.cell
    axes = (f"--mode={cell.mode}", f"--precision={cell.precision}", f"--device={cell.device}")
    chosen = () if wanted.source == cell.model else ("-k", cell.id)
    command = [str(python), "-c", START, "run", wanted.source, *axes, *chosen, "-n1", "--no-speed", f"--store={own}"]
    printed = own / "output.txt"
    with printed.open("wb") as output:
        subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_variables(code),
            check=False,
        )
    runs = sorted(own.glob("runs/*"))
    if not runs:
        return Row(version, "", _last_words(printed))
    contents = run_files.read(runs[-1])
    found = contents.plan.environment.torch
    if not _is(version, found):
        return Row(version, "", f"torch {version} was asked for, and torch {found} is installed")
    verdict = contents.verdicts.get(cell.id)
    return Row(version, verdict.status, _detail(verdict)) if verdict else Row(version, "", _last_words(printed))


def _variables(code: Path) -> dict[str, str]:
    """The variables of a run of one version: it imports this project from the copy, and not from where it is now."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = [entry for entry in entries if not other_torch.holds_code(Path(entry))]
    kept = {name: value for name, value in os.environ.items() if name not in FOR_THIS_COMMAND}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(code), *inherited])}


def _is(asked_for: str, found: str) -> bool:
    """Whether a version is the one asked for, which may leave open for what it was built, such as "+cpu"."""
    return Version(found) == Version(asked_for) or Version(found).public == asked_for


def _detail(verdict: Verdict) -> str:
    """The margin or the reason."""
    if verdict.status == "PASS":
        return figure(verdict.margin or 0.0)
    return one_line(visible(verdict.text if verdict.red else verdict.reason or verdict.text))


def _last_words(printed: Path) -> str:
    """The last message of a run that judged nothing."""
    lines = [line for line in printed.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line.partition(": ")[2] for line in lines if line.startswith("conformance: ")]
    return one_line(visible((said or lines or ["it printed nothing"])[-1]))

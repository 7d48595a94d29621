"""Commands on stored runs, and what GitHub Actions is told of a run: `show`, `diff`, `merge` and `compat`.

GitHub takes lines of a log that begin with `::` as commands. So nothing that a command prints counts as one, but the
annotations: a text of a model could be the start of a line.
"""

import gc
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.commands.output import columns, say, tell, write
from conformance.errors import ExitCode, UsageError
from conformance.figures import atlas
from conformance.judging import resuming
from conformance.records.tasks import ProbeRun
from conformance.show import bench, ci, comparisons, matrix, sheet
from conformance.show import page as html_page
from conformance.store import files, run_files, shards
from conformance.store.run_files import Contents

ACTIONS, SUMMARY, WORKSPACE = "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"
TOKEN = secrets.token_hex(16)  # no model can guess it


def show_run(
    folder: Path,
    *,
    markdown: bool = False,
    xml: Path | None = None,
    html: Path | None = None,
    csv: Path | None = None,
) -> ExitCode:
    """`conformance show`: print a run, write it to the files that are named, and return the exit code that it has.

    Raises:
        UsageError: the folder is no run folder, is damaged, or holds records that contradict each other; or the file
            for HTML or CSV cannot be written.
        MachineError: the file for JUnit cannot be written.
    """
    contents = read(folder)
    tell(page(contents, folder) if markdown else report(contents, folder))
    if xml:
        ci.write_junit(contents, xml)
    write("--html", html, lambda: as_html(contents, folder))
    write("--csv", csv, lambda: sheet.draw(contents))
    return exit_code(contents)


def show_changes(before: Path, after: Path, *, markdown: Path | None, json: Path | None, html: Path | None) -> ExitCode:
    """`conformance diff`: compare two runs, print what has changed, and write it to the files that are named.

    Returns:
        `RED` if a cell is newly red or its verdict has changed, otherwise `OK`.

    Raises:
        UsageError: a run cannot be read, or a file cannot be written.
    """
    earlier = run_files.read_summary(before)
    found = atlas.compare(earlier, run_files.read_summary(after))
    tell(comparisons.changes_text(found))
    write("--md", markdown, lambda: comparisons.changes_page(found))
    write("--json", json, lambda: comparisons.changes_json(found))
    write("--html", html, lambda: as_html(run_files.read(after), after, (earlier, found)))
    return ExitCode.RED if found.is_worse else ExitCode.OK


def merge_shards(folders: tuple[Path, ...], into: Path, *, any_cpu: bool) -> ExitCode:
    """`conformance merge`: join the shards of one plan, say what is missing, and print what the joined run holds.

    Returns:
        `OK` if every cell of the plan has a verdict and none is red, otherwise `RED`.

    Raises:
        UsageError: the runs cannot be joined, or the joined run cannot be written.
    """
    gc.disable()  # which takes a fifth of the time of many shards: records have no circles
    try:
        missing = shards.merge(folders, into, any_cpu=any_cpu)
    finally:
        gc.enable()
    for line in missing:
        say(line)
    contents = run_files.read(into)
    tell(matrix.totals(contents, folder=into))
    announce(contents, into)
    return exit_code(contents)


def show_compat(paths: tuple[Path, ...], *, markdown: Path | None, json: Path | None, html: Path | None) -> ExitCode:
    """`conformance compat`: print since which torch version each cell works, and which versions have which faults.

    Args:
        paths: run folders, files that `conformance probes --write` wrote, and at most one that this command wrote.
        markdown: file to write, if any.
        json: the same.
        html: the same.

    Raises:
        UsageError: one of them cannot be read, two of one version judge the same cell or run the same probe,
            or a file cannot be written.
    """
    runs, probes, earlier = [], [], {}
    for path in paths:
        if not path.is_file():
            runs.append(run_files.read_summary(path))
        elif (known := atlas.read(path)) is not None:
            earlier[path] = known
        else:
            probes.append(files.decode(path, files.read(path), "probes", ProbeRun))
    if len(earlier) > 1:
        raise UsageError(f"{' and '.join(map(str, earlier))} are two files of compat; give one, and the newer runs")
    seeds = sorted({run.plan.seed for run in runs})
    if len(seeds) > 1:
        raise UsageError(f"these runs have different seeds, {', '.join(map(str, seeds))}; compare runs of one seed")
    found = atlas.join(runs, probes, next(iter(earlier.values()), atlas.Atlas()))
    tell(comparisons.atlas_text(found))
    write("--md", markdown, lambda: comparisons.atlas_page(found))
    write("--json", json, lambda: atlas.document(found))
    write("--html", html, lambda: comparisons.atlas_html(found))
    return ExitCode.OK


def read(folder: Path) -> Contents:
    """Read a stored run. If its last line is unfinished, a message on the error stream says so.

    Raises:
        UsageError: the folder is no run folder, has another format, or is damaged.
    """
    contents = run_files.read(folder)
    tell_torn(contents, folder)
    if contents.has_all and not contents.complete:
        again = resuming.command(folder, contents.plan)
        say(f"{folder / run_files.DONE} is missing: the run did not end; {again} completes it")
    return contents


def tell_torn(contents: Contents, folder: Path) -> None:
    """Say on the error stream if the last line of a run is unfinished."""
    if contents.torn_bytes:
        say(f"{folder / run_files.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")


def exit_code(contents: Contents) -> ExitCode:
    """`OK` if all cells have verdicts, not all are skipped and none is red, or if a shard is empty; otherwise `RED`."""
    judged = any(verdict.status != "SKIPPED" for verdict in contents.verdicts.values()) or contents.plan.is_empty_shard
    red = not (judged and contents.has_all) or any(v.red for v in contents.verdicts.values())
    return ExitCode.RED if red else ExitCode.OK


def report(contents: Contents, folder: Path, seconds: float | None = None) -> str:
    """The matrix and, if the run is a bench, its measurements.

    Raises:
        UsageError: the records of the run contradict each other, so that no report can be made of them.
    """
    with _coherent(folder):
        parts = [bench.bench_text(contents), ""] if contents.plan.measure == "bench" else []
        parts.append(matrix.render(contents, seconds=seconds, folder=folder, terminal=columns(sys.stdout)))
    return "\n".join(parts)


def as_html(contents: Contents, folder: Path, earlier: tuple[Contents, atlas.Comparison] | None = None) -> str:
    """A run as one page of HTML, with what has changed since an earlier run; see `report`."""
    with _coherent(folder):
        return html_page.draw(contents, folder=folder, green=exit_code(contents) == ExitCode.OK, earlier=earlier)


@contextmanager
def _coherent(folder: Path) -> Iterator[None]:
    """Refuse a run whose records contradict each other, by a UsageError."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
        why = f"{type(problem).__name__}: {problem}"
        raise UsageError(f"{folder}: its records contradict each other, so there is no report: {why}") from problem


def page(contents: Contents, folder: Path) -> str:
    """A run as a page of Markdown; see `report`."""
    return ci.page(contents, report(contents, folder), folder, green=exit_code(contents) == ExitCode.OK)


def announce(contents: Contents, folder: Path) -> None:
    """Append the page of a run to the summary of the step, and print its annotations, each if GitHub asks for it.

    If the summary cannot be written, a message says so. What `report` refuses raises a `UsageError`.
    """
    summary = os.environ.get(SUMMARY, "")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8", newline="\n") as file:
                file.write(f"{page(contents, folder)}\n")
        except OSError as problem:
            say(f"{SUMMARY} {summary}: {problem.strerror or problem}; the step has no summary of this run")
    if _github_listens():
        tell(f"::{TOKEN}::")
        for line in ci.error_commands(contents, Path(os.environ.get(WORKSPACE) or Path.cwd()).resolve()):
            tell(line)
        tell(f"::stop-commands::{TOKEN}")


@contextmanager
def commands_off() -> Iterator[None]:
    """Let GitHub take nothing that is printed meanwhile as a command, but what `announce` prints."""
    if _github_listens():
        tell(f"::stop-commands::{TOKEN}")
    try:
        yield
    finally:
        if _github_listens():
            tell(f"::{TOKEN}::")


def _github_listens() -> bool:
    return os.environ.get(ACTIONS) == "true"

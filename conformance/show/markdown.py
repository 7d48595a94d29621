"""Draws a run as Markdown for the summary of a CI step: the verdict, the red models, and the whole report folded.

A text that comes from a model stands between `<code>` tags, or in a block of `<pre>`, with every sign escaped that
Markdown or HTML could read. The page is cut to `LARGEST` bytes, whatever the run holds.
"""

from __future__ import annotations

import html
import string
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from conformance.counted import counted
from conformance.one_line import one_line
from conformance.records.plan import ALL_CASES
from conformance.records.verdicts import STATUSES, Verdict
from conformance.show.causes import Cause, causes
from conformance.show.text import visible
from conformance.store.run_files import Contents

LARGEST = 190_000  # bytes; GitHub takes 1 MiB for each step, and a page is read by people
ROWS = 60_000  # bytes for the table of red models
LONGEST_TEXT, LONGEST_LINE = 400, 2_000  # characters of a cell of the table, and of a line of the folded report
LONGEST_HINT = 100  # bytes
ESCAPED = str.maketrans({sign: f"&#{ord(sign)};" for sign in string.punctuation})


def page(contents: Contents, report: str, folder: Path, *, green: bool) -> str:
    """The page.

    Args:
        contents: contents of the run folder.
        report: the whole report as text.
        folder: path of the run folder, for the hint where something is cut.
        green: whether everything is as expected.
    """
    found = causes(judged_verdicts(contents))
    hint = f"`conformance show` prints all of {code(str(folder))}"
    head = "\n".join([f"## {headline(contents, green=green)}", "", *_red_models(found, hint)])
    start, end = "\n\n<details><summary>The whole report</summary>\n\n<pre>\n", f"</pre>\n\n{hint}.\n\n</details>\n"
    lines = [html.escape(_short(line)) for line in report.split("\n")]
    shown = _fitting(lines, LARGEST - len(f"{head}{start}{end}".encode()))
    return "".join([head, start, *(f"{line}\n" for line in [*shown, *_left_out(lines, shown)]), end])


def headline(contents: Contents, *, green: bool) -> str:
    """The verdict on a run in one line: the number of cells, how many are red or missing, torch, and the machine."""
    known = contents.plan.environment
    red = sum(verdict.red for verdict in judged_verdicts(contents))
    missing = f", {len(contents.missing)} not judged" if contents.missing else ""
    sign = STATUSES["PASS" if green else "FAIL"].glyph
    machine = " ".join(filter(None, [known.cpu, known.cpu_capability, *dict.fromkeys(known.gpus)]))
    about = " · ".join(code(part) for part in (f"torch {known.torch}", f"Python {known.python}", machine))
    depth = "" if contents.plan.depth == ALL_CASES else f" · {contents.plan.depth}"
    return f"{sign} {counted(len(contents.selected), 'cell')}, {red} red{missing} · {about}{depth}"


def judged_verdicts(contents: Contents) -> list[Verdict]:
    """The verdicts of the selected cells, in the order of the plan."""
    chosen = set(contents.selected)
    return [contents.verdicts[p.id] for p in contents.plan.cells if p.id in chosen and p.id in contents.verdicts]


def code(text: str) -> str:
    """A text as code on one line, of which nothing is read as Markdown or HTML. A long one loses its middle.

    >>> code("a|b")
    '<code>a&#124;b</code>'
    """
    return f"<code>{one_line(visible(text), LONGEST_TEXT).translate(ESCAPED)}</code>"


def _red_models(found: list[Cause], hint: str) -> Iterator[str]:
    """The table of red models, one row for each cause."""
    rows = [f"| {code(c.model)} | {_cells(c)} | {c.status} | {code(c.text)} |" for c in found]
    shown = _fitting(rows, ROWS)
    if rows:
        yield from ("| red model | cells | verdict | reason |", "|---|---|---|---|", *shown)
    for left_out in _left_out(rows, shown):
        yield f"\n{left_out}; {hint}."


def _cells(cause: Cause) -> str:
    """The cells of a cause by their axes, and how many they are."""
    axes = ", ".join(cell.partition("[")[2].removesuffix("]") for cell in cause.cells)
    return code(axes) if len(cause.cells) == 1 else f"{len(cause.cells)}: {code(axes)}"


def _fitting(lines: list[str], room: int) -> list[str]:
    """The first lines that fit into a number of bytes, with some room for `_left_out`."""
    ends = accumulate(len(line.encode()) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= room - LONGEST_HINT]


def _left_out(lines: list[str], shown: list[str]) -> list[str]:
    """A line that says how many lines are left out, if any are."""
    return [f"… and {len(lines) - len(shown)} more lines"] if len(shown) < len(lines) else []


def _short(line: str) -> str:
    return visible(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …")

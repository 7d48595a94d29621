"""Draws a run for CI: a page of Markdown for the summary of a step, annotations of GitHub Actions, and JUnit's XML.

A text that comes from a model stands on the page between `<code>` tags, or in a block of `<pre>`, with every sign
escaped that Markdown or HTML could read. The page is cut to `LARGEST` bytes, whatever the run holds.
"""

import html
import shlex
import string
import xml.etree.ElementTree as ET  # it only writes
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from conformance.errors import MachineError, counted, one_line, some, with_last_lines
from conformance.records import plan
from conformance.records.cell import STATUSES, Verdict, model_of
from conformance.show.matrix import Cause, causes
from conformance.show.text import visible
from conformance.store.run_files import Contents

LARGEST = 190_000  # bytes; GitHub takes 1 MiB for each step, and a page is read by people
ROWS = 60_000  # bytes for the table of red models
LONGEST_TEXT, LONGEST_LINE = 400, 2_000  # characters of a cell of the table, and of a line of the folded report
LONGEST_HINT = 100  # bytes
ESCAPED = str.maketrans({sign: f"&#{ord(sign)};" for sign in string.punctuation})

MOST = 10  # annotations; GitHub shows no more of one step
OF_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
OF_PROPERTIES = OF_DATA | str.maketrans({":": "%3A", ",": "%2C"})

NO_RESULT = ("ERROR", "CRASH", "TIMEOUT", "OOM", "NOTRUN")  # JUnit calls these errors, and other red cells failures
NOT_DONE = ("SKIPPED", "UNSUPPORTED")
NOT_IN_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}  # beside the characters that `visible` replaces


def page(contents: Contents, report: str, folder: Path, *, green: bool) -> str:
    """The page of Markdown: the verdict, the red models, and the whole report as text, folded.

    The folder of the run stands in the hint where something is cut. `green`: everything is as expected.
    """
    found = causes(judged_verdicts(contents))
    hint = f"`conformance show` prints all of {code(str(folder))}"
    typed = [code(shlex.join(["conformance", *contents.plan.command])), ""] if contents.plan.command else []
    head = "\n".join([f"## {headline(contents, green=green)}", "", *typed, *_red_models(found, hint)])
    start, end = "\n\n<details><summary>The whole report</summary>\n\n<pre>\n", f"</pre>\n\n{hint}.\n\n</details>\n"
    lines = [html.escape(_short(line)) for line in report.split("\n")]
    shown = _fitting(lines, LARGEST - len(f"{head}{start}{end}".encode()))
    return "".join([head, start, *(f"{line}\n" for line in [*shown, *_left_out(lines, shown)]), end])


def headline(contents: Contents, *, green: bool) -> str:
    """The verdict on a run in one line: the number of cells, how many are red or missing, torch, and the machine."""
    known = contents.plan.environment
    red = sum(verdict.red for verdict in judged_verdicts(contents))
    missing = f", {len(contents.missing)} not judged" if contents.missing else ""
    missing += f", {visible(contents.plan.lacks)} missing" if contents.plan.lacks else ""
    sign = STATUSES["PASS" if green else "FAIL"].glyph
    machine = " ".join(filter(None, [known.cpu, known.cpu_capability, *dict.fromkeys(known.gpus)]))
    about = " · ".join(code(part) for part in (f"torch {known.torch}", f"Python {known.python}", machine))
    depth = "" if contents.plan.depth == plan.ALL_CASES else f" · {contents.plan.depth}"
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
    axes = code(", ".join(cell.partition("[")[2].removesuffix("]") for cell in cause.cells))
    return axes if len(cause.cells) == 1 else f"{len(cause.cells)}: {axes}"


def _fitting(lines: list[str], room: int) -> list[str]:
    """The first lines that fit into a number of bytes, with some room for `_left_out`."""
    ends = accumulate(len(line.encode()) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= room - LONGEST_HINT]


def _left_out(lines: list[str], shown: list[str]) -> list[str]:
    """A line that says how many lines are left out, if any are."""
    return [f"… and {len(lines) - len(shown)} more lines"] if len(shown) < len(lines) else []


def _short(line: str) -> str:
    return visible(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …")


def error_commands(contents: Contents, root: Path) -> list[str]:
    """Commands in the log of GitHub Actions, at most `MOST`: one for each cause, at the line that names the model.

    GitHub takes file names as relative to the folder `root`; a file outside keeps its absolute path.
    """
    number = counted(len(contents.missing), "cell")
    missing = f"{number} not judged: {some(contents.missing)}"
    lines = [_error(missing, title="conformance")] if contents.missing else []
    lines += [_error(f"{contents.plan.lacks} missing", title="conformance")] if contents.plan.lacks else []
    found = causes(judged_verdicts(contents))
    room = MOST - len(lines)
    shown = found if len(found) <= room else found[: room - 1]
    lines += [_annotation(cause, contents.plan.models[cause.model].written, root) for cause in shown]
    if len(shown) < len(found):
        left_out = f"{len(found) - len(shown)} more causes of red cells; the summary of this step lists them"
        lines.append(_error(left_out, title="conformance"))
    return lines


def _annotation(cause: Cause, place: plan.Place | None, root: Path) -> str:
    where = {}
    if place is not None:
        path = Path(place.file)
        file = path.relative_to(root).as_posix() if path.is_relative_to(root) else place.file
        where = {"file": file, "line": str(place.line)}
    title = f"{cause.model}: {counted(len(cause.cells), 'cell')} {cause.status}"
    return _error(f"{cause.text} ({cause.named})", **where, title=title)


def _error(message: str, **properties: str) -> str:
    """A command that reports an error.

    >>> _error("50 % off", file="a,b.py", line="3")
    '::error file=a%2Cb.py,line=3::50 %25 off'
    """
    where = ",".join(f"{name}={_escape(value, OF_PROPERTIES)}" for name, value in properties.items())
    return f"::error {where}::{_escape(message, OF_DATA)}"


def _escape(text: str, signs: dict[int, str]) -> str:
    return one_line(visible(text)).translate(signs)


def junit(contents: Contents) -> str:
    """JUnit's XML of a run: a test case for each cell, whose class is the model. Cells not judged are errors."""
    known = contents.plan.environment
    root = ET.Element("testsuites", name="conformance")
    suite = ET.SubElement(root, "testsuite", name=_xml_text(f"torch {known.torch}"))
    about = {"torch": known.torch, "python": known.python, "system": known.system, "cpu": known.cpu}
    _add_properties(suite, {**about, "seed": str(contents.plan.seed), "depth": contents.plan.depth})
    chosen = set(contents.selected)
    for name in (planned.id for planned in contents.plan.cells if planned.id in chosen):
        verdict = contents.verdicts.get(name, Verdict(name, "NOTRUN", "the cell was planned and not judged"))
        _add_case(suite, verdict, contents.plan.models[model_of(name)].written)
    if contents.plan.lacks:
        case = ET.SubElement(suite, "testcase", classname="conformance", name="shards", time="0")
        ET.SubElement(case, "error", type="NOTRUN", message=_xml_text(f"{contents.plan.lacks} missing"))
    for element in (root, suite):
        for count, path in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
            element.set(count, str(len(suite.findall(f"testcase{path}"))))
        element.set("time", f"{sum(v.seconds for v in contents.verdicts.values()):.3f}")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def write_junit(contents: Contents, file: Path) -> None:
    """Write JUnit's XML of a run to a file, whose folder is made if it is missing; MachineError if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(junit(contents), encoding="utf-8")
    except OSError as problem:
        raise MachineError(f"--junitxml {file}: {problem.strerror or problem}") from None


def _add_case(suite: ET.Element, verdict: Verdict, place: plan.Place | None) -> None:
    model = model_of(verdict.cell)
    case = ET.SubElement(suite, "testcase", classname=model, name=verdict.cell, time=f"{verdict.seconds:.3f}")
    if place is not None:
        case.set("file", _xml_text(place.file))
        case.set("line", str(place.line))
    margin = "" if verdict.margin is None else f"{verdict.margin:.3g}"
    known = {"verdict": verdict.status, "margin": margin, "reason": verdict.reason, "link": verdict.link}
    _add_properties(case, known)
    if verdict.red:
        kind = "error" if verdict.status in NO_RESULT else "failure"
        red = ET.SubElement(case, kind, type=verdict.status, message=_xml_text(verdict.text))
        red.text = with_last_lines(_xml_text(verdict.text), map(_xml_text, verdict.observation.said))
    elif verdict.status in NOT_DONE:
        ET.SubElement(case, "skipped", type=verdict.status, message=_xml_text(verdict.reason or verdict.text))


def _add_properties(element: ET.Element, known: dict[str, str]) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in known.items():
        if value:
            ET.SubElement(properties, "property", name=name, value=_xml_text(value))


def _xml_text(text: str) -> str:
    """A text on one line, of characters that XML has."""
    return one_line(visible(text).translate(NOT_IN_XML))

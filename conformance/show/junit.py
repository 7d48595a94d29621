"""Draws a run as JUnit's XML: a test case for each cell, whose class is the model."""

from __future__ import annotations

import xml.etree.ElementTree as ET  # it only writes
from pathlib import Path

from conformance.errors import MachineError, with_last_lines
from conformance.one_line import one_line
from conformance.records.cell import model_of
from conformance.records.plan import Place
from conformance.records.verdicts import Verdict
from conformance.show.text import visible
from conformance.store.run_files import Contents

NO_RESULT = ("ERROR", "CRASH", "TIMEOUT", "OOM", "NOTRUN")  # JUnit calls these errors, and other red cells failures
NOT_DONE = ("SKIPPED", "UNSUPPORTED")
NOT_IN_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}  # beside the characters that `visible` replaces


def document(contents: Contents) -> str:
    """The XML of a run. Cells that were not judged are errors."""
    known = contents.plan.environment
    root = ET.Element("testsuites", name="conformance")
    suite = ET.SubElement(root, "testsuite", name=_plain(f"torch {known.torch}"))
    about = {"torch": known.torch, "python": known.python, "system": known.system, "cpu": known.cpu}
    _add_properties(suite, {**about, "seed": str(contents.plan.seed), "depth": contents.plan.depth})
    chosen = set(contents.selected)
    for name in (planned.id for planned in contents.plan.cells if planned.id in chosen):
        verdict = contents.verdicts.get(name, Verdict(name, "NOTRUN", "the cell was planned and not judged"))
        _add_case(suite, verdict, contents.plan.models[model_of(name)].written)
    for element in (root, suite):
        counts = {kind: str(len(suite.findall(f"testcase/{kind}"))) for kind in ("failure", "error", "skipped")}
        element.set("tests", str(len(suite.findall("testcase"))))
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(attribute, counts[kind])
        element.set("time", f"{sum(v.seconds for v in contents.verdicts.values()):.3f}")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def write(contents: Contents, file: Path) -> None:
    """Write the XML of a run to a file; its folder is made if it is missing.

    Raises:
        MachineError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document(contents), encoding="utf-8")
    except OSError as problem:
        raise MachineError(f"--junitxml {file}: {problem.strerror or problem}") from None


def _add_case(suite: ET.Element, verdict: Verdict, place: Place | None) -> None:
    model = model_of(verdict.cell)
    case = ET.SubElement(suite, "testcase", classname=model, name=verdict.cell, time=f"{verdict.seconds:.3f}")
    if place is not None:
        case.set("file", _plain(place.file))
        case.set("line", str(place.line))
    margin = "" if verdict.margin is None else f"{verdict.margin:.3g}"
    known = {"verdict": verdict.status, "margin": margin, "reason": verdict.reason, "link": verdict.link}
    _add_properties(case, known)
    if verdict.red:
        kind = "error" if verdict.status in NO_RESULT else "failure"
        red = ET.SubElement(case, kind, type=verdict.status, message=_plain(verdict.text))
        red.text = with_last_lines(_plain(verdict.text), map(_plain, verdict.observation.said))
    elif verdict.status in NOT_DONE:
        ET.SubElement(case, "skipped", type=verdict.status, message=_plain(verdict.reason or verdict.text))


def _add_properties(element: ET.Element, known: dict[str, str]) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in known.items():
        if value:
            ET.SubElement(properties, "property", name=name, value=_plain(value))


def _plain(text: str) -> str:
    """A text on one line, of characters that XML has."""
    return one_line(visible(text).translate(NOT_IN_XML))

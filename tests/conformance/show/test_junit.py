"""JUnit's XML of a run, read with a parser."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from harness.hostile import TEXTS
from harness.made_by_hand import ENVIRONMENT, plan_for, with_models

from conformance.errors import MachineError
from conformance.records.cell import Cell
from conformance.records.plan import Place
from conformance.records.verdicts import STATUSES, Verdict
from conformance.show import junit
from conformance.store.run_files import Contents

CELLS = [Cell("net", "eager", "fp32", "cpu"), Cell("other", "compiled", "amp_fp16", "cpu")]


PLACE = Place("/nets.py", 4)


def contents(*verdicts, place=PLACE, **changed):
    plan = with_models(replace(plan_for(*CELLS), **changed), {"net": {"written": place}})
    return Contents(plan, tuple(c.id for c in CELLS), {v.cell: v for v in verdicts})


def suite(found):
    return ET.fromstring(junit.document(found)).find("testsuite")


def properties(element):
    return {p.get("name"): p.get("value") for p in element.findall("properties/property")}


def test_the_class_is_the_model_and_the_name_the_cell():
    passed = Verdict(CELLS[0].id, "PASS", margin=0.12345, seconds=1.25)
    failed = Verdict(CELLS[1].id, "FAIL", "norm  output: error 3, budget 1", margin=3.0)
    found = suite(contents(passed, failed))
    first, second = found.findall("testcase")
    assert first.attrib == {"classname": "net", "name": CELLS[0].id, "time": "1.250", "file": "/nets.py", "line": "4"}
    assert properties(first) == {"verdict": "PASS", "margin": "0.123"}
    assert second.attrib == {"classname": "other", "name": CELLS[1].id, "time": "0.000"}
    (failure,) = second.findall("failure")
    assert failure.attrib == {"type": "FAIL", "message": "norm  output: error 3, budget 1"}
    assert found.attrib["tests"] == "2"
    assert (found.attrib["failures"], found.attrib["errors"], found.attrib["skipped"]) == ("1", "0", "0")
    assert properties(found)["torch"] == "2.13.0"


@pytest.mark.parametrize("status", STATUSES)
def test_a_case_is_red_if_its_cell_is(status):
    case = suite(contents(Verdict(CELLS[0].id, status, "a text", reason="declared", link="https://x"))).find("testcase")
    red = [child.tag for child in case if child.tag in ("failure", "error")]
    assert bool(red) == STATUSES[status].red
    assert [child.get("type") for child in case.findall("skipped")] == ([status] if status in junit.NOT_DONE else [])
    assert properties(case)["verdict"] == status
    assert properties(case)["reason"] == "declared"


def test_a_cell_that_was_not_judged_is_an_error():
    found = suite(contents(Verdict(CELLS[0].id, "PASS")))
    errors = {case.get("name"): case.find("error").get("type") for case in found.findall("testcase[error]")}
    assert errors == {CELLS[1].id: "NOTRUN"}
    assert (found.get("tests"), found.get("errors")) == ("2", "1")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_makes_the_file_invalid_or_long(text):
    for status in ("ERROR", "SKIPPED", "EXPECTED"):
        verdict = Verdict(CELLS[0].id, status, text, reason=text, link=text)
        environment = replace(ENVIRONMENT, cpu=text, torch=text, system=text)
        found = contents(verdict, environment=environment, place=Place(text, 1))
        drawn = junit.document(found)
        assert len(drawn.encode()) < 20_000
        read = ET.fromstring(drawn.encode()).find("testsuite/testcase")
        assert "{'" not in drawn
        assert all(value.isprintable() for element in read.iter() for value in element.attrib.values())


def test_every_character_of_a_text_is_one_that_xml_has():
    for start in range(0, 0x110000, 4096):
        text = "".join(map(chr, range(start, start + 4096)))
        for part in (text[i : i + 256] for i in range(0, 4096, 256)):
            ET.fromstring(junit.document(contents(Verdict(CELLS[0].id, "ERROR", part))).encode())


def test_a_file_is_written_with_its_folder_or_named(tmp_path):
    found = contents(Verdict(CELLS[0].id, "PASS"))
    junit.write(found, tmp_path / "a" / "b" / "report.xml")
    assert (tmp_path / "a" / "b" / "report.xml").read_text(encoding="utf-8") == junit.document(found)
    with pytest.raises(MachineError, match=r"--junitxml .*a: "):
        junit.write(found, tmp_path / "a")

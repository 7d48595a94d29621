"""What CI is shown of a run: the page of Markdown, annotations, and JUnit's XML, read with parsers."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from harness.hostile import TEXTS
from harness.made_by_hand import ENVIRONMENT, passed, plan_for, with_models

from conformance.commands import stored
from conformance.errors import MachineError, one_line
from conformance.records.cell import STATUSES, Cell, Verdict
from conformance.records.plan import Place
from conformance.show import ci
from conformance.show.text import visible
from conformance.store.run_files import Contents

FOLDER, ROOT = Path("a folder"), Path("/repository")
PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")
COMMAND = re.compile(r"::error (?:file=(?P<file>[^,:]+),line=(?P<line>\d+),)?title=(?P<title>[^,:]+)::(?P<message>.*)")
HOSTILE = pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))


def contents(*models, status=None, text="it broke", written=None, **fields):
    """A run of three cells of each model, all with one verdict; they pass unless it is given."""
    models = models or ("net",)
    written = written or {model: Place(f"/repository/specs/{model}.py", 3 + n) for n, model in enumerate(models)}
    cells = [Cell(model, "eager", precision, "cpu") for model in models for precision in PRECISIONS]
    plan = replace(plan_for(*cells), **fields)
    plan = with_models(plan, {model: {"written": place} for model, place in written.items()})
    red = {p.id: Verdict(p.id, status, text, short="error", reason=text, link=text) for p in plan.cells if status}
    return Contents(plan, tuple(p.id for p in plan.cells), red or passed(plan))


class Tags(HTMLParser):
    """The tags of a page, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.data = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, *attributes))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.data += data


def test_the_verdict_comes_first_in_one_line():
    assert stored.page(contents(), FOLDER).splitlines()[0] == (
        "## ✓ 3 cells, 0 red · <code>torch 2&#46;13&#46;0</code> · <code>Python 3&#46;11&#46;9</code> · "
        "<code>a processor AVX2</code>"
    )
    found = contents()
    first, second, _ = found.selected
    half = replace(found, verdicts={first: Verdict(first, "FAIL"), second: Verdict(second, "PASS")})
    assert stored.page(half, FOLDER).startswith("## ✗ 3 cells, 1 red, 1 not judged · ")


def test_the_command_that_was_typed_comes_second():
    found = contents(command=("run", "my nets.py", "--mode=eager"))
    assert stored.page(found, FOLDER).splitlines()[2] == ci.code("conformance run 'my nets.py' --mode=eager")


def test_red_models_come_next_one_row_for_each_cause_and_the_rest_is_folded():
    text = stored.page(contents("one", "two", status="ERROR", text="it | broke"), FOLDER)
    head, fold, report = text.partition("\n\n<details><summary>The whole report</summary>\n\n<pre>\n")
    assert fold
    rows = [line for line in head.splitlines() if line.startswith("| <code>")]
    rest = f"3: {ci.code('eager-fp32-cpu, eager-amp_fp16-cpu, eager-amp_bf16-cpu')} | ERROR | {ci.code('it | broke')}"
    assert rows == [f"| {ci.code(model)} | {rest} |" for model in ("one", "two")]
    assert "6 cells: 6 error" in report
    assert report.endswith("</pre>\n\n`conformance show` prints all of <code>a folder</code>.\n\n</details>\n")
    assert "red model" not in stored.page(contents(), FOLDER)


@HOSTILE
def test_no_text_of_a_run_is_read_as_markdown_or_html(text):
    environment = replace(ENVIRONMENT, cpu=text, torch=text, python=text)
    for folder in (FOLDER, Path(text.replace("\x00", "")[:50])):
        drawn = stored.page(contents(status="ERROR", text=text, environment=environment), folder)
        drawn.encode()
        tags = Tags(drawn)
        assert tags.open == []
        assert set(tags.seen) == {("code",), ("details",), ("summary",), ("pre",)}
        assert one_line(visible(text), 400) in tags.data
        for line in drawn.partition("<details>")[0].splitlines():
            assert line.count("|") in (0, 5)
            assert not set("`*[]<>#\\_@") & set(re.sub(r"^## |</?code>|&#\d+;", "", line))


def test_the_sign_that_starts_an_entity_is_escaped_first():
    assert ci.code("&#60;") == "<code>&#38;&#35;60&#59;</code>"


@pytest.mark.parametrize("sign", ["a", "|", "✓"])
def test_a_page_is_bounded_whatever_the_run_holds(sign):
    found = contents(*(f"net{'x' * 150}{number}" for number in range(400)))
    verdicts = {name: Verdict(name, "ERROR", f"{name}{sign * 400}", short="error") for name in found.selected}
    text = stored.page(replace(found, verdicts=verdicts), FOLDER)
    assert 50_000 < len(text.encode()) <= ci.LARGEST
    assert text.count("more lines") == 2
    assert text.endswith("</details>\n")
    assert Tags(text).open == []
    long = ci.page(contents(), sign * 10**6, FOLDER, green=True)  # one line
    assert len(long.encode()) < ci.LARGEST
    assert f"{sign} …\n</pre>" in long


def annotated(found):
    """The parts of each annotation."""
    return [COMMAND.fullmatch(line).groupdict() for line in ci.error_commands(found, ROOT)]


def test_an_annotation_points_at_the_line_of_the_spec_and_counts_its_cells():
    assert ci.error_commands(contents(status="ERROR"), ROOT) == [
        "::error file=specs/net.py,line=3,title=net%3A 3 cells ERROR::it broke (net, all 3 cells)"
    ]
    elsewhere = contents(status="ERROR", written={"net": Place("/elsewhere/net.py", 7)})
    assert [(a["file"], a["line"]) for a in annotated(elsewhere)] == [("/elsewhere/net.py", "7")]
    assert annotated(contents(status="ERROR", written={"net": None}))[0]["file"] is None
    assert ci.error_commands(contents(), ROOT) == []


@pytest.mark.parametrize("count", [1, ci.MOST, ci.MOST + 1, 50])
def test_there_are_at_most_ten_and_the_last_counts_the_others(count):
    found = annotated(contents(*(f"net{n}" for n in range(count)), status="ERROR"))
    assert len(found) == min(count, ci.MOST)
    if count > ci.MOST:
        rest = f"{count - ci.MOST + 1} more causes of red cells; the summary of this step lists them"
        assert found[-1]["message"] == rest
    assert all(a["file"] for a in found[: min(count, ci.MOST - 1)])


def test_what_is_wrong_with_the_whole_run_comes_first_and_counts_too():
    found = contents(*(f"net{n}" for n in range(20)), status="ERROR")
    messages = [a["message"] for a in annotated(replace(found, selected=(*found.selected, "lost[eager-fp32-cpu]")))]
    assert len(messages) == ci.MOST
    assert messages[0] == "1 cell not judged: lost[eager-fp32-cpu]"
    assert messages[-1].startswith("12 more causes")


@HOSTILE
def test_no_text_leaves_its_annotation(text):
    file = f"/repository/{text.replace(chr(0), '')[:40]}"
    (line,) = ci.error_commands(contents(status="ERROR", text=text, written={"net": Place(file, 3)}), ROOT)
    assert line.isprintable()
    assert len(line) < 4000
    head, message = COMMAND.fullmatch(line).group("file", "message")
    assert not set(",:") & set(head)
    assert not re.findall("%(?!25|0A|0D|3A|2C)", line)
    assert message.endswith("(net, all 3 cells)")


def suite(found):
    return ET.fromstring(ci.junit(found)).find("testsuite")


def properties(element):
    return {p.get("name"): p.get("value") for p in element.findall("properties/property")}


def test_the_class_of_a_test_case_is_the_model_and_its_name_the_cell():
    found = contents(written={"net": Place("/nets.py", 4)})
    first, second, third = found.selected
    passed = Verdict(first, "PASS", margin=0.12345, seconds=1.25)
    failed = Verdict(second, "FAIL", "norm  output: error 3, budget 1", margin=3.0)
    found = suite(replace(found, verdicts={first: passed, second: failed}))
    one, two, three = found.findall("testcase")
    assert one.attrib == {"classname": "net", "name": first, "time": "1.250", "file": "/nets.py", "line": "4"}
    assert properties(one) == {"verdict": "PASS", "margin": "0.123"}
    assert two.find("failure").attrib == {"type": "FAIL", "message": "norm  output: error 3, budget 1"}
    assert (three.get("name"), three.find("error").get("type")) == (third, "NOTRUN")
    counts = {name: found.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    assert properties(found)["torch"] == "2.13.0"


@pytest.mark.parametrize("status", STATUSES)
def test_a_test_case_is_red_if_its_cell_is(status):
    case = suite(contents(status=status, text="a text")).find("testcase")
    red = [child.tag for child in case if child.tag in ("failure", "error")]
    assert bool(red) == STATUSES[status].red
    assert [child.get("type") for child in case.findall("skipped")] == ([status] if status in ci.NOT_DONE else [])
    assert (properties(case)["verdict"], properties(case)["reason"]) == (status, "a text")


@HOSTILE
def test_no_text_makes_the_xml_invalid_or_long(text):
    for status in ("ERROR", "SKIPPED", "EXPECTED"):
        environment = replace(ENVIRONMENT, cpu=text, torch=text, system=text)
        drawn = ci.junit(contents(status=status, text=text, environment=environment, written={"net": Place(text, 1)}))
        assert len(drawn.encode()) < 40_000
        read = ET.fromstring(drawn.encode()).find("testsuite/testcase")
        assert all(value.isprintable() for element in read.iter() for value in element.attrib.values())


def test_every_character_of_a_text_is_one_that_xml_has():
    ends_of_planes = range(0x1FF00, 0x110000, 0x10000)  # the rest of them is like what is before
    for start in (*range(0, 0x10000, 256), *ends_of_planes):
        ET.fromstring(ci.junit(contents(status="ERROR", text="".join(map(chr, range(start, start + 256))))).encode())


def test_the_xml_is_written_with_its_folder_or_its_file_named(tmp_path):
    ci.write_junit(contents(), tmp_path / "a" / "b" / "report.xml")
    assert (tmp_path / "a" / "b" / "report.xml").read_text(encoding="utf-8") == ci.junit(contents())
    with pytest.raises(MachineError, match=r"--junitxml .*a: "):
        ci.write_junit(contents(), tmp_path / "a")

"""The page for the summary of a CI step: what comes first, what is escaped, and how long it may be."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from harness.hostile import TEXTS
from harness.made_by_hand import ENVIRONMENT, passed, plan_for

from conformance.commands.github import markdown
from conformance.one_line import one_line
from conformance.records.cell import Cell
from conformance.records.verdicts import Verdict
from conformance.show.markdown import LARGEST, code, page
from conformance.show.text import visible
from conformance.store.run_files import Contents

FOLDER = Path("a folder")
PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")


def contents(models=("net",), **status):
    plan = plan_for(*(Cell(model, "eager", precision, "cpu") for model in models for precision in PRECISIONS))
    return Contents(plan, tuple(p.id for p in plan.cells), passed(plan, **status))


def red(found, text, status="ERROR"):
    """The same run with all cells red, each with its own text."""
    verdicts = {name: Verdict(name, status, text, short="error", reason=text, link=text) for name in found.selected}
    return replace(found, verdicts=verdicts)


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
    assert markdown(contents(), FOLDER).splitlines()[0] == (
        "## ✓ 3 cells, 0 red · <code>torch 2&#46;13&#46;0</code> · <code>Python 3&#46;11&#46;9</code> · "
        "<code>a processor AVX2</code>"
    )
    half = contents(eager_fp32="FAIL")
    verdicts = {name: verdict for name, verdict in half.verdicts.items() if "bf16" not in name}
    assert markdown(replace(half, verdicts=verdicts), FOLDER).startswith("## ✗ 3 cells, 1 red, 1 not judged · ")


def test_red_models_come_next_one_row_for_each_cause_and_the_rest_is_folded():
    text = markdown(red(contents(("one", "two")), "it | broke"), FOLDER)
    head, fold, report = text.partition("\n\n<details><summary>The whole report</summary>\n\n<pre>\n")
    assert fold
    rows = [line for line in head.splitlines() if line.startswith("| <code>")]
    assert rows == [
        f"| {code(model)} | 3: {code('eager-fp32-cpu, eager-amp_fp16-cpu, eager-amp_bf16-cpu')} | ERROR "
        f"| {code('it | broke')} |"
        for model in ("one", "two")
    ]
    assert "6 cells: 6 error" in report
    assert report.endswith("</pre>\n\n`conformance show` prints all of <code>a folder</code>.\n\n</details>\n")


def test_a_green_run_has_no_table_of_red_models():
    text = markdown(contents(), FOLDER)
    assert "red model" not in text
    assert "3 cells: 3 pass" in text


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_of_a_run_is_read_as_markdown_or_html(text):
    found = red(contents(), text)
    hostile = replace(found.plan, environment=replace(ENVIRONMENT, cpu=text, torch=text, python=text))
    for folder in (FOLDER, Path(text.replace("\x00", "")[:50])):
        drawn = markdown(replace(found, plan=hostile), folder)
        drawn.encode()
        tags = Tags(drawn)
        assert tags.open == []
        assert set(tags.seen) == {("code",), ("details",), ("summary",), ("pre",)}
        assert one_line(visible(text), 400) in tags.data
        for line in drawn.partition("<details>")[0].splitlines():
            assert line.count("|") in (0, 5)
            assert not set("`*[]<>#\\_@") & set(re.sub(r"^## |</?code>|&#\d+;", "", line))


def test_the_sign_that_starts_an_entity_is_escaped_first():
    assert code("&#60;") == "<code>&#38;&#35;60&#59;</code>"


@pytest.mark.parametrize("sign", ["a", "|", "✓"])
def test_a_page_is_bounded_whatever_the_run_holds(sign):
    found = contents([f"net{'x' * 150}{number}" for number in range(1000)])
    verdicts = {name: Verdict(name, "ERROR", f"{name}{sign * 400}", short="error") for name in found.selected}
    text = markdown(replace(found, verdicts=verdicts), FOLDER)
    assert 50_000 < len(text.encode()) <= LARGEST
    assert text.count("more lines") == 2
    assert text.endswith("</details>\n")
    assert Tags(text).open == []


def test_a_long_report_of_one_line_is_bounded():
    text = page(contents(), "✓" * 10**6, FOLDER, green=True)
    assert len(text.encode()) < LARGEST
    assert "✓ …\n</pre>" in text

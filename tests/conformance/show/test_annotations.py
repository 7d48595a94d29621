"""Annotations of GitHub Actions: how many, where they point, and what is escaped."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness.hostile import TEXTS
from harness.made_by_hand import passed, plan_for, with_models

from conformance.records.cell import Cell
from conformance.records.plan import Place
from conformance.records.verdicts import Verdict
from conformance.show.annotations import MOST, error_commands
from conformance.store.run_files import Contents

ROOT = Path("/repository")
COMMAND = re.compile(r"::error (?:file=(?P<file>[^,:]+),line=(?P<line>\d+),)?title=(?P<title>[^,:]+)::(?P<message>.*)")


def contents(*models, status="ERROR", text="it broke"):
    cells = [Cell(model, "eager", precision, "cpu") for model in models for precision in ("fp32", "amp_fp16")]
    written = {m: {"written": Place(f"/repository/specs/{m}.py", 3 + n)} for n, m in enumerate(models)}
    plan = with_models(plan_for(*cells), written)
    verdicts = {cell.id: Verdict(cell.id, status, text) for cell in cells}
    return Contents(plan, tuple(verdicts), verdicts)


def drawn(found):
    """The parts of each annotation."""
    return [COMMAND.fullmatch(line).groupdict() for line in error_commands(found, ROOT)]


def test_an_annotation_points_at_the_line_of_the_spec_and_counts_its_cells():
    assert error_commands(contents("net"), ROOT) == [
        "::error file=specs/net.py,line=3,title=net%3A 2 cells ERROR::it broke (net, all 2 cells)"
    ]


def test_a_file_elsewhere_keeps_its_path_and_a_spec_without_a_file_has_none():
    found = contents("net")
    elsewhere = with_models(found.plan, {"net": {"written": Place("/elsewhere/net.py", 7)}})
    assert [(a["file"], a["line"]) for a in drawn(replace(found, plan=elsewhere))] == [("/elsewhere/net.py", "7")]
    assert drawn(replace(found, plan=with_models(found.plan, {"net": {"written": None}})))[0]["file"] is None


@pytest.mark.parametrize("count", [0, 1, MOST, MOST + 1, 50])
def test_there_are_at_most_ten_and_the_last_counts_the_others(count):
    found = drawn(contents(*(f"net{n}" for n in range(count))))
    assert len(found) == min(count, MOST)
    if count > MOST:
        assert (
            found[-1]["message"] == f"{count - MOST + 1} more causes of red cells; the summary of this step lists them"
        )
    assert all(a["file"] for a in found[: min(count, MOST - 1)])


def test_what_is_wrong_with_the_whole_run_comes_first_and_counts_too():
    found = contents(*(f"net{n}" for n in range(20)))
    lost = Cell("lost", "eager", "fp32", "cpu")
    messages = [a["message"] for a in drawn(replace(found, selected=(*found.selected, lost.id)))]
    assert len(messages) == MOST
    assert messages[0] == f"1 cell not judged: {lost.id}"
    assert messages[-1].startswith("12 more causes")


def test_a_green_run_has_none():
    plan = plan_for(Cell("net", "eager", "fp32", "cpu"))
    assert error_commands(Contents(plan, tuple(passed(plan)), passed(plan)), ROOT) == []


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_leaves_its_annotation(text):
    found = contents("net", text=text)
    file = f"/repository/{text.replace(chr(0), '')[:40]}"
    found = replace(found, plan=with_models(found.plan, {"net": {"written": Place(file, 3)}}))
    (line,) = error_commands(found, ROOT)
    assert line.isprintable()
    assert len(line) < 4000
    head, message = COMMAND.fullmatch(line).group("file", "message")
    assert not set(",:") & set(head)
    assert not re.findall("%(?!25|0A|0D|3A|2C)", line)
    assert message.endswith("(net, all 2 cells)")

"""The pages that studies write: what they hold is what the study would write, but for measured numbers."""

import re
from string import Formatter

import pytest

from benchmarks import meters, saved_tensors

STUDY = re.compile(f"{meters.OPENING}\n(.*)\n{meters.CLOSING}", re.DOTALL)


def prose(text):
    """The parts of a format text between its fields."""
    return [literal for literal, *_ in Formatter().parse(text) if literal.strip()]


def in_order(parts, text):
    """The first part that does not follow the one before it in a text; None if all do."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return part
        at += len(part)
    return None


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (meters.TEXT, STUDY.search(meters.PAGE.read_text(encoding="utf-8"))[1]),
        (saved_tensors.TEXT, saved_tensors.PAGE.read_text(encoding="utf-8")),
    ],
    ids=["measurement", "memory"],
)
def test_a_page_has_the_prose_that_its_study_writes(text, page):
    assert len(prose(text)) > 4
    assert in_order(prose(text), page) is None


def test_the_page_on_measurement_has_the_rules_of_every_meter():
    assert f"\n\n{meters.rules()}\n\n" in meters.PAGE.read_text(encoding="utf-8")


def test_the_page_on_memory_is_what_the_study_writes_around_its_tables():
    page = saved_tensors.PAGE.read_text(encoding="utf-8")
    tools, fused = (table.rstrip("\n") for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE))
    written = saved_tensors.page("cpu", 80, tools=tools, fused=fused)
    environment = re.compile(r"Measured with torch \S+ on one thread of: .*\.")
    assert environment.sub("", written) == environment.sub("", page)


def test_a_missing_part_of_the_prose_is_noticed():
    assert in_order(["one ", " three"], "one two three") is None
    assert in_order([" three", "one "], "one two three") == "one "

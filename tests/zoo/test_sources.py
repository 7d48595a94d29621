"""Every model of the zoo names a source that can be found, and docs/sources.md lists the known ones."""

import re
from pathlib import Path

import pytest

import zoo
from zoo.sources import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
PAPER = re.compile(r"\b(19|20)\d\d\b|arXiv:\d{4}\.\d{4,5}")  # a year, such as "Ba et al. 2016", or a number


@pytest.mark.parametrize("name", zoo.list_models())
def test_a_source_is_known_or_is_a_paper(name):
    source = zoo.get_spec(name).source
    assert source.startswith(tuple(SOURCES)) or PAPER.search(source), f"add to zoo/sources.py: {source}"


def test_the_page_of_sources_has_every_title_and_address():
    assert [s for s in SOURCES.values() if f"[{s.title}]({s.url})" not in PAGE] == []


def test_no_name_of_a_source_begins_another():
    names = list(SOURCES)
    assert [(a, b) for a in names for b in names if a != b and b.startswith(a)] == []

"""The pages of false claims and the tests of the truth name each other completely."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "where-the-sources-are-wrong"
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
PAGES = {file.name: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.md")) if file.name != "index.md"}
TESTS = sorted(Path(__file__).parent.glob("test_claims_on_*.py"))


def headings(page):
    return re.findall(r"^### (.*)$", PAGES[page], re.MULTILINE)


def anchor(heading):
    """Return the name that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_pages_name_every_test_of_a_claim_and_no_other():
    written = {name for file in TESTS for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}
    named = [name for page in PAGES.values() for name in re.findall(r"^- `(test_\w+)`$", page, re.MULTILINE)]
    assert len(written) > 60
    assert sorted(named) == sorted(written)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_links_to_files_that_exist(page):
    links = re.findall(r"\]\(([^)#]+)\)", PAGES[page])
    assert {link for link in links if "://" not in link and not (FOLDER / link).is_file()} == set()
    assert len(PAGES[page].splitlines()) < 200


@pytest.mark.parametrize("page", PAGES)
def test_a_page_links_to_the_files_of_the_tests_that_it_names(page):
    for file in TESTS:
        names = re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
        assert any(f"- `{name}`" in PAGES[page] for name in names) == (f"(../../tests/zoo/{file.name})" in PAGES[page])


def test_every_claim_has_its_test():
    sections = [part for page in PAGES.values() for part in re.split(r"^### ", page, flags=re.MULTILINE)[1:]]
    assert [section.splitlines()[0] for section in sections if "\n- `test_" not in section] == []


def test_the_index_links_to_every_claim():
    entries = re.findall(r"^- \[(.*)\]\(([\w-]+\.md#.*)\)$", INDEX, re.MULTILINE)
    claims = [(page, heading) for page in PAGES for heading in headings(page)]
    assert len(entries) == sum(line.startswith("- [") for line in INDEX.splitlines())
    assert sorted(address for _, address in entries) == sorted(f"{page}#{anchor(heading)}" for page, heading in claims)
    assert sorted(title.replace("\\", "") for title, _ in entries) == sorted(heading for _, heading in claims)

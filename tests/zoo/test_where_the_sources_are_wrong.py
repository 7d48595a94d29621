"""The page of false claims and the tests of the truth name each other completely."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "where-the-sources-are-wrong.md").read_text(encoding="utf-8")
TESTS = sorted(Path(__file__).parent.glob("test_claims_on_*.py"))


def test_the_page_names_every_test_of_a_claim_and_no_other():
    written = {name for file in TESTS for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)}
    named = re.findall(r"^- `(test_\w+)`$", PAGE, re.MULTILINE)
    assert len(written) > 30
    assert sorted(named) == sorted(written)


def test_the_page_links_to_files_that_exist():
    links = re.findall(r"\]\(\.\./([^)]+)\)", PAGE)
    assert {link for link in links if not (ROOT / link).is_file()} == set()
    assert {f"tests/zoo/{file.name}" for file in TESTS} <= set(links)


def test_every_claim_has_its_test():
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if "\n- `test_" not in section] == []

"""The pages that follow from the specs say what the specs say."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
found = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
build = importlib.util.module_from_spec(found)
found.loader.exec_module(build)


@pytest.mark.parametrize("page", build.PAGES)
def test_a_generated_page_is_what_the_specs_say(page):
    assert (DOCS / page).read_text(encoding="utf-8") == build.PAGES[page](), "run: python docs/build.py"

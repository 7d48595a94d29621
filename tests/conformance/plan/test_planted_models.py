"""A file put into a folder of the zoo is a model of the zoo, or an error that says where."""

import sys

import pytest
from harness.spec_files import file_of, planned

from zoo import catalog
from zoo.case import SpecError


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A folder of the catalogue, made for this test."""
    package = tmp_path / "planted_folder"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "FOLDERS", (*catalog.FOLDERS, "planted_folder"))
    catalog._walked.cache_clear()
    yield package
    catalog._walked.cache_clear()
    for name in [n for n in sys.modules if n.startswith("planted_folder")]:
        del sys.modules[name]


def test_a_planted_file_is_a_model_of_the_zoo(planted):
    file_of(planted, "acorn")
    assert "acorn" in catalog.list_models()
    plan = planned("acorn", modes=("eager",), precisions=("fp32",), devices=("cpu",))
    assert [p.cell.model for p in plan.cells] == ["acorn"]
    assert "acorn" in {p.cell.model for p in planned().cells}


def test_a_planted_duplicate_raises_with_both_places(planted):
    file_of(planted, "merge")
    with pytest.raises(SpecError, match=r"'merge' is defined in both zoo\.models\.merge and planted_folder\.merge"):
        catalog.list_models()


def test_a_planted_file_without_a_spec_raises(planted):
    (planted / "bare.py").write_text("x = 1")
    with pytest.raises(SpecError, match=r"planted_folder\.bare defines no Spec"):
        catalog.list_models()


def test_a_planted_file_that_does_not_import_raises(planted):
    (planted / "broken.py").write_text("1 / 0")
    with pytest.raises(SpecError, match=r"planted_folder\.broken does not import: ZeroDivisionError"):
        catalog.list_models()

"""What a person may name as a source, and what is said of what they may not."""

import sys

import pytest
from harness.spec_files import MODEL, complaint, file_of, planned

from conformance import axes
from conformance.errors import UsageError
from conformance.plan import find
from conformance.records.plan import SpecLocation
from zoo import catalog
from zoo.case import SpecError

ONE_CELL = {"modes": ("eager",), "precisions": ("fp32",), "devices": ("cpu",)}


def models(*sources):
    """The models of the plan of some sources, in order."""
    return [p.cell.model for p in planned(*sources, **ONE_CELL).cells]


def whole_zoo():
    return catalog.list_models() + catalog.list_models(module="counterexamples")


def test_no_source_means_the_whole_zoo_and_what_is_wrong_on_purpose_is_listed_apart():
    assert models() == whole_zoo()
    assert "sum_over_broadcast" in catalog.list_models(module="counterexamples")
    assert "sum_over_broadcast" not in catalog.list_models()


@pytest.mark.parametrize("folder", ["functions", "counterexamples"])
def test_a_folder_of_the_zoo_is_a_source(folder):
    assert models(folder, "merge") == [*catalog.list_models(module=folder), "merge"]


def test_a_name_that_is_nowhere_is_said_with_what_was_looked_for():
    assert "no model named 'merg'; did you mean merge" in complaint("merg")
    assert complaint("nowhere/nothing.py") == "no file nowhere/nothing.py"
    assert "no_such_package.nets does not import: ModuleNotFoundError" in complaint("no_such_package.nets:SPEC")
    assert complaint("zoo.models.merge:Merge").startswith("merge has no spec, so its inputs must be described")
    assert complaint("zoo.models.merge:Nothing").endswith("merge.py has no Nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found", "does not import: ModuleNotFoundError: No module named 'nowhere_to"),
        ("def f(:", "does not import: SyntaxError"),
        ("1 / 0", "does not import: ZeroDivisionError"),
        ("x = 1", "defines no zoo.Spec and registers no mode"),
        ("", "defines no zoo.Spec and registers no mode"),
    ],
)
def test_a_file_of_no_use_says_why(tmp_path, text, message):
    path = tmp_path / "useless.py"
    path.write_text(text)
    told = complaint(str(path))
    assert str(path) in told
    assert message in told


F33 = 'expectations=(Expect(outcome="dtype", reason="r", tensor="output", dtype="f33"),)'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('(Case(name="typical", inputs=inputs),)', "()", "one: cases: want a tuple with at least one Case, got ()"),
        ('name="one"', 'name="One"', "spec name 'One': want lower-case"),
        ("lambda: torch.nn.Identity()", "3", "one: build must be callable, got 3"),
        ('source="s",', 'source="s", dtypes="float33",', "one: dtypes: 'float33' is neither"),
        ("expectations=()", F33, "one: expectation 'r': torch has no dtype 'f33'"),
    ],
)
def test_a_spec_that_contradicts_itself_names_spec_and_field(tmp_path, old, new, message):
    path = tmp_path / "one.py"
    text = MODEL.format(name="one", expectations="")
    assert old in text
    path.write_text(text.replace(old, new))
    assert message in complaint(str(path))


def test_a_spec_is_found_by_its_name_and_is_there_once_however_often_it_is_named(tmp_path):
    path = file_of(tmp_path, "one")
    assert models(f"{path}:one") == ["one"]
    assert complaint(f"{path}:two") == f"{path} has no two"
    assert models("zoo.models.merge:MERGE") == ["merge"]
    assert models(path, path) == ["one"]
    (tmp_path / "the_third.py").write_text(MODEL.format(name="shared_spec", expectations=""))
    paths = [tmp_path / "first.py", tmp_path / "second.py"]
    for path in paths:
        path.write_text("from the_third import shared_spec")
    assert models(*map(str, paths)) == ["shared_spec"]


def test_two_models_of_one_name_are_refused_with_both_places_also_beside_one_of_the_zoo(tmp_path):
    first, second = file_of(tmp_path, "same"), file_of(tmp_path, "same", stem="other")
    told = complaint(first, second)
    assert told.startswith("two models are named 'same'")
    assert first in told
    assert second in told
    assert "two models are named 'merge'" in complaint("merge", file_of(tmp_path, "merge"))


def test_a_file_that_only_registers_a_mode_adds_it_to_the_zoo(tmp_path):
    path = tmp_path / "backend.py"
    path.write_text("import conformance\nconformance.register_mode('planted', lambda model: None)\n")
    plan = planned(str(path), modes=("planted",), precisions=("fp32",), devices=("cpu",))
    assert [p.cell.model for p in plan.cells] == whole_zoo()
    assert {p.cell.mode for p in plan.cells} == {"planted"}
    assert plan.modes == {"planted": SpecLocation(file=str(path))}


@pytest.mark.parametrize(
    ("name", "prepare", "message"),
    [
        ("eager", print, "mode 'eager' is already registered"),
        ("My Mode", print, "mode name 'My Mode': want lower-case"),
        ("mine", 3, "mode 'mine': prepare must be callable, got 3"),
    ],
)
def test_a_mode_that_cannot_be_registered(name, prepare, message):
    with pytest.raises(UsageError, match=message):
        axes.register_mode(name, prepare)


def test_a_file_beside_the_source_cannot_hide_a_standard_module(tmp_path):
    (tmp_path / "json.py").write_text("raise AssertionError('the wrong json')")
    path = tmp_path / "uses_json.py"
    path.write_text(MODEL.format(name="uses_json", expectations="") + "\nimport json.decoder\n")
    assert models(str(path)) == ["uses_json"]


def test_a_location_finds_its_spec_again_loads_a_file_once_and_finds_the_zoo_too(tmp_path):
    ((spec, location),), _ = find.find([file_of(tmp_path, "one")])
    assert find.spec_at(location, "one") is spec
    assert find.spec_at(location, "merge") is catalog.get_spec("merge")
    assert find.spec_at(SpecLocation("zoo.models.mlp"), "mlp@64").name == "mlp@64"
    with pytest.raises(catalog.UnknownModelError, match="no model named 'two'"):
        find.spec_at(location, "two")


def test_registering_a_taken_name_in_the_catalogue_raises(tmp_path):
    ((spec, _),), _ = find.find([file_of(tmp_path, "merge", stem="impostor")])
    with pytest.raises(SpecError, match="'merge' is already registered"):
        catalog.register(spec)


# A file put into a folder of the zoo is a model of the zoo, or an error that says where.


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
    assert models("acorn") == ["acorn"]
    assert "acorn" in {p.cell.model for p in planned().cells}


def test_a_planted_duplicate_raises_with_both_places(planted):
    file_of(planted, "merge")
    with pytest.raises(SpecError, match=r"'merge' is defined in both zoo\.models\.merge and planted_folder\.merge"):
        catalog.list_models()


@pytest.mark.parametrize(("text", "told"), [("x = 1", "defines no Spec"), ("1 / 0", "does not import: ZeroDivision")])
def test_a_planted_file_without_a_spec_or_that_does_not_import_raises(planted, text, told):
    (planted / "bare.py").write_text(text)
    with pytest.raises(SpecError, match=rf"planted_folder\.bare {told}"):
        catalog.list_models()

"""Models that installed packages declare."""

import pytest
from harness.spec_files import complaint, planned

ONE_CELL = {"modes": ("eager",), "precisions": ("fp32",), "devices": ("cpu",)}


def install(folder, package, **entries):
    """Put the metadata of a package that declares models where Python finds it."""
    place = folder / f"{package}-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (place / "entry_points.txt").write_text("\n".join(["[conformance.models]", *lines]))


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_name_stands_for_a_module_or_for_one_spec(packages):
    install(packages, "cubes", my_cubes="zoo.functions.cube", my_cube="zoo.functions.cube:SPEC")
    for name in ("my_cubes", "my_cube"):
        cells = planned(name, **ONE_CELL).cells
        assert [cell.cell.model for cell in cells][:1] == ["cube"]


def test_one_that_does_not_import_is_named(packages):
    install(packages, "lost", my_lost="nowhere.specs")
    assert "nowhere.specs does not import: ModuleNotFoundError" in complaint("my_lost")


def test_two_packages_may_not_declare_one_name_for_two_things(packages):
    install(packages, "one", nets="zoo.functions.cube")
    install(packages, "two", nets="zoo.functions.square")
    told = complaint("nets")
    assert "'nets' is declared twice in the group conformance.models: as zoo.functions.cube by one and " in told
    assert "zoo.functions.square by two; name the module" in told


def test_a_name_of_the_zoo_is_taken(packages):
    install(packages, "one", merge="zoo.functions.cube")
    assert "'merge' is a model of the zoo, and a package declares it as zoo.functions.cube" in complaint("merge")

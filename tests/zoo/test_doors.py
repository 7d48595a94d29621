"""What `zoo` and `conformance` offer after their import: all that is public, and nothing else."""

import subprocess
import sys

import pytest
from harness.sources import ROOT

import conformance
import zoo

FOLDERS = sorted(path.parent.name for path in (ROOT / "zoo").glob("*/__init__.py"))


def fresh(code):
    """Return the words that a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("package", [zoo, conformance])
def test_dir_lists_what_is_public_and_all_of_it_is_there(package):
    listed = dir(package)
    assert set(package.__all__) <= set(listed)
    assert not [name for name in listed if name.startswith("_") or not hasattr(package, name)]
    assert set(listed) - set(package.__all__) == (set(FOLDERS) if package is zoo else set())


def test_the_folders_are_there_when_they_are_touched_and_not_before():
    inside = "name for name in sys.modules if name.startswith('zoo.') and name.count('.') > 1"
    assert fresh(f"import sys, zoo; print(*({inside}))") == []
    assert fresh("import zoo; print(zoo.models.Merge.__name__, zoo.ops.row_sum.__name__)") == ["Merge", "row_sum"]
    words = fresh(f"import zoo; print(*(getattr(zoo, name).__name__ for name in {FOLDERS}))")
    assert words == [f"zoo.{name}" for name in FOLDERS]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = zoo.nothing


def test_a_fresh_interpreter_completes_the_names_of_conformance():
    words = fresh("import conformance; print(*dir(conformance))")
    assert {"check", "register_backend", "register_mode", "Report"} <= set(words)

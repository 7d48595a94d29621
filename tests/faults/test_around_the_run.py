"""What stands around a run does not touch it: a person's pytest, their files, and their variables."""

import pytest
from harness.command import FP32, conformance, stored_runs
from harness.tiny import judged, models

HOSTILE = "raise RuntimeError('this file belongs to the tests of somebody')\n"
SKIPPING = """
import pytest
open("ran", "w").close()
def pytest_collection_modifyitems(items):
    items.clear()
def pytest_runtest_setup(item):
    pytest.skip("not here")
"""
INI = "addopts = --strict-markers --nothing-knows-this\nminversion = 99\ntestpaths = nowhere\n"
SHADOWS = "random torch pytest xdist execnet selectors tempfile socket struct zoo filelock tabulate dataclasses enum"
ODD = "odd [a] b::c – ✓ $HOME @x %s ' \" \\ \n.."  # each part means something to pytest, a shell or a terminal


def hostile(folder):
    """Fill a folder with what a project may have, and more."""
    (folder / "conftest.py").write_text(HOSTILE)
    (folder / "pytest.ini").write_text(f"[pytest]\n{INI}")
    (folder / "tox.ini").write_text(f"[pytest]\n{INI}")
    (folder / "setup.cfg").write_text(f"[tool:pytest]\n{INI}")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--nothing-knows-this'\n")
    (folder / "spoiler.py").write_text(SKIPPING)
    for name in SHADOWS.split():
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} of the working folder')\n")
    (folder / ODD / "runs").mkdir(parents=True)
    (folder / ODD / "conftest.py").write_text(SKIPPING)
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text("")
    models(folder / "mine", stem="nets", one="same", two="same")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_project_around_a_run_does_not_touch_it(tmp_path, workers):
    hostile(tmp_path)
    code, output = conformance(
        tmp_path,
        *("run", "mine.nets:ONE", "mine.nets:TWO", *FP32, "-n", workers, "--store", ODD),
        PYTEST_ADDOPTS="--nothing-knows-this -k nobody",
        PYTEST_PLUGINS="spoiler",
        PYTHONWARNINGS="error",
    )
    assert code == 0, output
    assert "2 cells: 2 pass" in output
    assert not (tmp_path / "ran").exists()


def test_a_conftest_in_a_run_folder_is_not_run_and_a_plugin_is_if_it_is_asked_for(tmp_path):
    source = models(tmp_path, one="same")
    code, output = judged(tmp_path, source, "-n1", "--collect-only")
    assert code == 1, output
    (stored,) = stored_runs(tmp_path)
    (stored / "conftest.py").write_text(SKIPPING)
    (tmp_path / "remark.py").write_text("def pytest_sessionstart():\n    open('loaded', 'w').close()\n")
    code, output = conformance(tmp_path, "run", source, "--resume", str(stored), "-n1", "-p", "remark")
    assert code == 0, output
    assert (tmp_path / "loaded").exists()
    assert not list(tmp_path.rglob("ran"))

"""Environments with another torch, made by stand-ins for pip and uv."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.commands import bisect
from conformance.errors import NotInstalledError

ROOT = Path(__file__).parent.parent.parent.parent
NONE = """
Looking in links: /wheels
ERROR: Ignored the following versions that require a different python version: 2.15.0 Requires-Python >=3.11
ERROR: Could not find a version that satisfies the requirement torch==9.9.9 (from versions: 2.4.1, 2.5.1)
ERROR: No matching distribution found for torch==9.9.9
"""
UV = """
  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of torch==9.9.9 and you require
      torch==9.9.9, we can conclude that your requirements are
      unsatisfiable.
"""


@pytest.fixture
def commands(monkeypatch):
    """The commands that would have been run; each does what `effect` says."""
    done = []

    def run(command, env, **_):
        assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(env)
        done.append(command)
        code, text = run.effect(command)
        return subprocess.CompletedProcess(command, code, text.encode())

    run.effect = lambda _: (0, "")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.delenv(bisect.INDEX, raising=False)
    return done, run


def test_pip_installs_into_an_environment_of_its_own(commands, monkeypatch, tmp_path):
    done, _ = commands
    monkeypatch.setattr("shutil.which", lambda _: None)
    python = bisect.make_environment(tmp_path / "env", "2.6.0", ("einops",))
    assert python == tmp_path / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "torch==2.6.0"]
    assert done == [[sys.executable, "-m", "venv", str(tmp_path / "env")], pip, [*pip, *bisect.NEEDED, "einops"]]


def test_uv_is_taken_where_it_is_installed_and_an_index_is_for_torch_alone(commands, monkeypatch, tmp_path):
    done, _ = commands
    monkeypatch.setattr("shutil.which", lambda _: "/bin/uv")
    monkeypatch.setenv(bisect.INDEX, "https://index.test")
    python = bisect.make_environment(tmp_path / "env", "2.6.0", ())
    uv = ["/bin/uv", "pip", "install", "--python", str(python), "torch==2.6.0"]
    assert done == [
        ["/bin/uv", "venv", "--python", sys.executable, str(tmp_path / "env")],
        [*uv, "--default-index", "https://index.test"],
        [*uv, *bisect.NEEDED],
    ]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (NONE, "No matching distribution found for torch==9.9.9"),
        (UV, "No solution found when resolving dependencies: ╰─▶ Because there is no version of torch==9.9.9 and"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "No space left"),
        ("Killed\n", "Killed"),
        ("", "it printed nothing"),
        ("\x1b[31merror\x1b[0m: gone\n", r"\x1b[31merror\x1b[0m: gone"),
    ],
)
def test_a_version_that_cannot_be_had_is_one_line_that_names_it_the_python_and_the_reason(
    commands, tmp_path, printed, told
):
    _, run = commands
    run.effect = lambda command: (1 if "torch==9.9.9" in command else 0, printed)
    with pytest.raises(NotInstalledError) as caught:
        bisect.make_environment(tmp_path / "env", "9.9.9", ())
    text = str(caught.value)
    assert re.match(r"torch 9\.9\.9 was not installed with Python 3\.\d+\.\S+ on \w+ \w+: ", text)
    assert told in text
    assert text.isprintable()


def test_an_installer_that_does_not_start_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda _: str(tmp_path / "no uv"))
    with pytest.raises(NotInstalledError, match=r"the environment for torch 2\.6\.0 was not installed: No such file"):
        bisect.make_environment(tmp_path / "env", "2.6.0", ())


def test_what_is_installed_is_what_the_project_requires():
    text = (ROOT / "pyproject.toml").read_text()
    required = re.findall(
        r'^    "([\w.-]+>=[\d.]+)"', text.partition("\ndependencies = [")[2].partition("]")[0], re.MULTILINE
    )
    assert sorted(required) == sorted((*bisect.NEEDED, "torch>=2.4"))


def test_the_code_is_copied_without_what_is_installed_beside_it(tmp_path):
    folder = tmp_path / "code"
    bisect.copy_code(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["conformance", "zoo"]
    assert (folder / "zoo" / "catalog.py").read_bytes() == (ROOT / "zoo" / "catalog.py").read_bytes()
    assert not list(folder.rglob("__pycache__"))


def test_a_real_environment_is_made_and_fails_without_a_torch(monkeypatch, tmp_path):
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    with pytest.raises(NotInstalledError, match=r"torch 2\.6\.0 was not installed with Python .*: No solution found"):
        bisect.make_environment(tmp_path / "env", "2.6.0", ())
    assert (tmp_path / "env" / "bin" / "python").exists()

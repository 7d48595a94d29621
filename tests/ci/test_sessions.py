"""Sessions of nox from end to end, with packages of a few lines; test_environments.py has what installs torch."""

import os
import shutil
import subprocess
import sys

import pytest
from harness import wheels
from harness.command import ROOT

from conformance.torch_versions import PYTHONS, VERSIONS

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BACKEND = """
import sys
sys.path.insert(0, {harness!r})
from harness.wheels import wheel

def build_editable(folder, config_settings=None, metadata_directory=None):
    return wheel(folder, "torch_conformance", "1.0", requires={requires!r}, modules={{"judge": {judge!r}}},
                 scripts=["conformance = judge:main"])
"""
JUDGE = """
import os, pathlib, sys

def main():
    print("judge:", *sys.argv[1:])
    for argument in sys.argv:
        if argument.startswith("--store="):
            pathlib.Path(argument.partition("=")[2], "runs", "1").mkdir(parents=True)
    if "docs/nets.py" in sys.argv:
        return int(os.environ.get("WRONG_CODE", "1"))
    return int(os.environ.get("JUDGE_CODE", "0")) if sys.argv[1] == "run" else 0
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "torch-conformance"
version = "1.0"
requires-python = ">={python}"
dependencies = {requires}
"""


class Project:
    """A folder with our noxfile, and the packages that can be installed in it."""

    def __init__(self, folder):
        self.folder, self.packages = folder / "project", folder / "packages"
        for version in ("2.4.1", "2.6.0", "2.13.0"):
            wheels.torch(self.packages, version)
        self.no_index = folder / "no index"
        self.no_index.mkdir()
        shutil.copytree(ROOT / ".ci", self.folder / ".ci")
        (self.folder / ".ci" / "sample.py").write_text('print("judge: a live module")', encoding="utf-8")
        shutil.copy(ROOT / "noxfile.py", self.folder)
        (self.folder / "conformance").mkdir()
        versions = (ROOT / "conformance" / "torch_versions.py").read_text(encoding="utf-8")
        pinned = versions.replace('PYTHON = "3.11"', f'PYTHON = "{PYTHON}"')  # the Python of this test
        (self.folder / "conformance" / "torch_versions.py").write_text(pinned, encoding="utf-8")
        self.requires("torch>=2.4")

    def requires(self, *requirements):
        """Let the project require other packages."""
        backend = BACKEND.format(harness=str(ROOT / "tests"), requires=list(requirements), judge=JUDGE)
        (self.folder / "backend.py").write_text(backend, encoding="utf-8")
        text = PROJECT.format(python=PYTHON, requires=list(requirements))
        (self.folder / "pyproject.toml").write_text(text, encoding="utf-8")

    def nox(self, *arguments, backend="uv", **environment):
        """Run nox; returns its exit code and what it printed."""
        on_disk = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.packages),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_NO_CONFIG": "1",
            "UV_DEFAULT_INDEX": self.no_index.as_uri(),  # uv has no variable that forbids all indexes
            "UV_FIND_LINKS": str(self.packages),
            "UV_NO_CACHE": "1",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "TORCH_"))}
        words = [sys.executable, "-m", "nox", "-fb", backend, *arguments]
        env = {**kept, **on_disk, "PYTHONPATH": "", **environment}
        done = subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=1200
        )
        return done.returncode, done.stdout + done.stderr

    def kept(self):
        """The names of the runs and of the environments that are kept."""
        runs = (self.folder / ".conformance" / "matrix").glob("*")
        environments = (path for path in (self.folder / ".nox").glob("*") if path.is_dir())
        return [path.name for path in runs], [path.name for path in environments]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def last_line(output):
    """The line with which a session ends that does not do what was asked."""
    return next(line for line in output.splitlines() if line.startswith("nox > Session") and "aborted" in line)


def test_each_version_is_a_session_with_an_id_and_a_tag(project):
    code, output = project.nox("--list", "--tags", "matrix")
    assert code == 0
    listed = [line.split(" ")[1] for line in output.splitlines() if line.startswith("* ")]
    assert listed == [*(f"matrix({version})" for version in VERSIONS), f"matrix(python{PYTHONS[-1]}-{VERSIONS[-1]})"]


def test_a_version_is_judged_and_probed_in_an_environment_that_is_then_removed(project):
    code, output = project.nox("-s", "matrix(2.6.0)")
    assert code == 0, output
    assert output.count("torch is the torch asked for, 2.6.0") == 2
    assert project.kept() == (["2.6.0"], [])
    assert "judge: run --no-speed --full" in output
    assert "judge: probes --write=.conformance/matrix/2.6.0/probes.json" in output


def test_a_red_run_fails_the_session_and_nox_keeps_the_environment_if_asked(project):
    code, output = project.nox("-r", "-s", "matrix(2.6.0)", JUDGE_CODE="1")
    assert (code, project.kept()) == (1, (["2.6.0"], ["matrix-2-6-0"]))
    assert "2.6.0: not everything is as declared" in last_line(output)


@pytest.mark.parametrize("backend", ["uv", "venv"])
def test_a_version_that_does_not_exist_is_one_line(project, backend):
    code, output = project.nox("-s", "matrix(2.8.0)", backend=backend)
    assert (code, project.kept()) == (1, ([], []))
    assert "torch==2.8.0 cannot be installed with Python" in last_line(output)
    assert {"uv": "no version of torch==2.8.0", "venv": "from versions: 2.4.1, 2.6.0, 2.13.0"}[backend] in output


def test_a_package_that_moves_torch_is_named(project):
    wheels.wheel(project.packages, "mover", "1.0", requires=["torch>=2.13"])
    project.requires("torch>=2.4", "mover")
    code, output = project.nox("-s", "matrix(2.6.0)")
    assert (code, project.kept()[0]) == (1, [])
    moved = "torch 2.6.0 was asked for, and 2.13.0 is installed: mover 1.0 requires torch>=2.13"
    assert moved in last_line(output)


def test_the_lowest_version_of_every_dependency_is_what_is_judged(project):
    for version in ("3.0", "4.0"):
        wheels.wheel(project.packages, "tool", version)
    project.requires("torch>=2.6", "tool>=3,<5")
    code, output = project.nox("-s", "minimums")
    assert (code, project.kept()[0]) == (0, ["minimums"]), output
    assert "torch is the torch asked for, 2.6" in output
    assert "tool==3" in output


def test_the_sample_judges_something_of_every_kind_with_the_newest_torch_that_can_be_had(project):
    wheels.torch(project.packages, "2.14.1")
    code, output = project.nox("-s", "sample(newest)", backend="venv")
    assert code == 0, output
    assert "torch 2.15.0 cannot be installed: ERROR: Could not find a version" in output
    assert output.count("torch is the torch asked for, 2.14.1") == 3
    assert "judge: run --no-speed mlp merge row_sum cube checkerboard_scripted train_step" in output
    assert "judge: run --no-speed mlp cube --mode=compiled" in output
    assert "judge: a live module" in output
    assert "nothing of timm is judged, it cannot be installed: ERROR" in output
    assert project.kept()[1] == []


def test_the_sample_fails_if_a_wrong_model_is_green(project):
    code, output = project.nox("-s", "sample(2.6.0)", backend="venv", WRONG_CODE="0")
    assert (code, "is green, and the model is wrong" in output) == (1, True), output

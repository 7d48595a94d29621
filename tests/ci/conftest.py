"""A project with the real noxfile, whose packages have a few lines each and lie on disk."""

import os
import shutil
import subprocess
import sys

import pytest
from harness import wheels
from harness.command import ROOT

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
            run = pathlib.Path(argument.partition("=")[2], "runs", "1")
            run.mkdir(parents=True)
            (run / "arguments").write_text(" ".join(sys.argv))
    if "docs/nets.py" in sys.argv:
        return int(os.environ.get("WRONG_CODE", "1"))
    return int(os.environ.get("JUDGE_CODE", "0")) if sys.argv[1] == "run" else 0
"""
SAMPLE = """
import os, sys
print("judge: a live module")
sys.exit(int(os.environ.get("SAMPLE_CODE", "0")))
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
        self.packages.mkdir()
        self.no_index = folder / "no index"
        self.no_index.mkdir()
        shutil.copytree(ROOT / ".ci", self.folder / ".ci")
        (self.folder / ".ci" / "sample.py").write_text(SAMPLE, encoding="utf-8")
        shutil.copy(ROOT / "noxfile.py", self.folder)
        (self.folder / "conformance").mkdir()
        versions = (ROOT / "conformance" / "torch_versions.py").read_text(encoding="utf-8")
        pinned = versions.replace('PYTHON = "3.11"', f'PYTHON = "{PYTHON}"')  # the Python of this test
        assert PYTHON == "3.11" or pinned != versions
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
        done = subprocess.run(
            [sys.executable, "-m", "nox", "-fb", backend, *arguments],
            cwd=self.folder,
            env={**kept, **on_disk, "PYTHONPATH": "", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def runs(self):
        """The names of the runs that are kept."""
        return sorted(path.name for path in (self.folder / ".conformance" / "matrix").glob("*"))

    @property
    def environments(self):
        """The names of the environments that are kept."""
        return sorted(path.name for path in (self.folder / ".nox").glob("*") if path.is_dir())


@pytest.fixture
def project(tmp_path):
    found = Project(tmp_path)
    for version in ("2.4.1", "2.6.0", "2.13.0"):
        wheels.torch(found.packages, version)
    return found

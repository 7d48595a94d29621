"""What steps of workflows meet here instead of the network: small programs on PATH, and artifacts in a folder."""

import fnmatch
import os
import shutil
import sys
from pathlib import Path

import torch
from packaging.version import Version

from conformance.torch_versions import DEFAULT, VERSIONS
from harness.command import ROOT

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = Version(torch.__version__).public
NEITHER = shutil.ignore_patterns(".*_cache", ".git", ".nox", ".conformance", "__pycache__", "*.egg-info", "build")
PROGRAMS = {
    # an installation is recorded; whatever else Python is asked for, this Python does
    "python": """
if [ "$1 $2 $3" = "-m pip install" ]; then echo "installed: ${*:4}"; exit 0; fi
exec {python} "$@" """,
    "conformance": 'exec {python} -m conformance "$@"',
    # the sessions that judge get fewer models
    "nox": """
case "$2" in matrix*|newest|nightly) set -- "$@" $MODELS ;; esac
exec {python} -m nox --force-venv-backend virtualenv "$@" """,
    # `.ci/run` makes an environment and calls pip and nox in it
    "python3": """
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
for program in pip nox; do printf '#!/bin/sh\\necho %s: "$@"\\n' "$program" > "$3/bin/$program"; done
chmod +x "$3/bin/pip" "$3/bin/nox" """,
    # the newest run on the branch is the folder $BASELINE_RUN
    "gh": """
case "$1 $2" in
  "run list") if [ -n "$BASELINE_RUN" ]; then echo 11; echo 10; fi ;;
  "run download") [ "$3" = 10 ] && while [ "$1" != --dir ]; do shift; done && cp -r "$BASELINE_RUN/." "$2" ;;
esac """,
}


def checkout(folder):
    """A copy of this project, whose list of versions holds the torch and the Python that are here."""

    def left_out(place, names):
        within = {name for name in names if folder.is_relative_to(Path(place, name))}  # the copy is no part of itself
        return NEITHER(place, names) | within

    shutil.copytree(ROOT, folder, ignore=left_out)
    page = folder / "conformance" / "torch_versions.py"
    text = page.read_text(encoding="utf-8").replace('PYTHON = "3.11"', f'PYTHON = "{PYTHON}"')
    page.write_text(text if TORCH in VERSIONS else text.replace(f'"{DEFAULT}"', f'"{TORCH}"'), encoding="utf-8")
    return folder


def environment(folder):
    """The variables with which steps find the stand-ins, and pip what is installed here and nothing else."""
    programs = folder / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text.replace('{python}', sys.executable)}\n")
        (programs / name).chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages")),
        "VIRTUALENV_SETUPTOOLS": "none",  # an older one than torch requires would hide the one that is here
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which pip reads as: build with what is installed
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "GITHUB_WORKFLOW": "CI",
        "GITHUB_REPOSITORY": "someone/something",
        "GITHUB_JOB": "models",
    }


class Artifacts:
    """The artifacts of a workflow, in a folder, and what uploads and downloads them."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def names(self):
        return sorted(path.name for path in self.folder.glob("*"))

    def actions(self, workspace):
        """The stand-ins for the actions that a job in a workspace uses."""
        return {
            "actions/upload-artifact": lambda inputs: self._upload(workspace, inputs),
            "actions/download-artifact": lambda inputs: self._download(workspace, inputs),
        }

    def _upload(self, workspace, inputs):
        paths = [workspace / line for line in inputs["path"].split()]
        assert all(path.exists() for path in paths) or inputs.get("if-no-files-found") != "error", paths
        place = self.folder / inputs["name"]
        assert not place.exists(), f"there is an artifact {place.name} already"
        if len(paths) == 1:
            shutil.copytree(paths[0], place)
        else:
            place.mkdir(parents=True)
            for path in paths:
                (shutil.copytree if path.is_dir() else shutil.copy)(path, place / path.name)

    def _download(self, workspace, inputs):
        for name in fnmatch.filter(self.names, inputs["pattern"]):
            shutil.copytree(self.folder / name, workspace / inputs["path"] / name)

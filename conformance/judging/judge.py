"""Says which code judges a run, so that whoever reads of its verdicts can find that code again."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import time
from pathlib import Path

from conformance.cache import sources
from conformance.records.plan import Judge

PACKAGES = ("conformance", "zoo")
COMPILED = "__pycache__"
DIGITS = 12  # of the digest
OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # set in a git hook, for its repository


def describe_judge() -> Judge:
    """The code that judges here, and today's date."""
    return Judge(time.strftime("%Y-%m-%d", time.gmtime()), _revision(), _code())


def _code() -> str:
    content = hashlib.sha256()
    for package in PACKAGES:
        folder = _folder_of(package)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if COMPILED not in path.parts}
        for name in sorted(files):
            content.update(f"{package}/{name} {sources.digest(files[name])}\n".encode())
    return content.hexdigest()[:DIGITS]


def _revision() -> str:
    folders = [str(_folder_of(package)) for package in PACKAGES]
    try:
        top = _git(folders[0], "rev-parse", "--show-toplevel")
        _git(top, "ls-files", "--error-unmatch", "--", *folders)
        commit = _git(top, "rev-parse", "--short", "HEAD")
        changed = _git(top, "status", "--porcelain", "--", *folders)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""  # there is no git, no commit, or no repository of theirs
    return f"{commit}+" if changed else commit


def _folder_of(package: str) -> Path:
    """The folder of a package, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).resolve().parent


def _git(folder: str, *arguments: str) -> str:
    """What git prints when it is called in a folder."""
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_HOOK}
    done = subprocess.run(["git", "-C", folder, *arguments], env=environment, capture_output=True, check=True)  # noqa: S603, S607
    return done.stdout.decode().strip()

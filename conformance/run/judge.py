"""Says which code judges a run, so that whoever reads of its verdicts can find that code again."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from pathlib import Path

from conformance.errors import UsageError
from conformance.records.plan import Judge
from conformance.run import git, sources

PACKAGES = ("conformance", "zoo")
COMPILED = "__pycache__"
DIGITS = 12  # of the digest


def describe_judge() -> Judge:
    """The code that judges here, and today's date."""
    return Judge(time.strftime("%Y-%m-%d", time.gmtime()), _revision(), _code())


def folder_of(package: str) -> Path:
    """The folder of a package, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).resolve().parent


def _code() -> str:
    content = hashlib.sha256()
    for package in PACKAGES:
        folder = folder_of(package)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if COMPILED not in path.parts}
        for name in sorted(files):
            content.update(f"{package}/{name} {sources.digest(files[name])}\n".encode())
    return content.hexdigest()[:DIGITS]


def _revision() -> str:
    folders = [str(folder_of(package)) for package in PACKAGES]
    try:
        top = Path(git.line(Path(folders[0]), "rev-parse", "--show-toplevel", otherwise="no repository"))
        git.line(top, "ls-files", "--error-unmatch", "--", *folders, otherwise="not in the repository")
        commit = git.line(top, "rev-parse", "--short", "HEAD", otherwise="no commit")
        changed = git.line(top, "status", "--porcelain", "--", *folders, otherwise="no repository")
    except UsageError:
        return ""
    return f"{commit}+" if changed else commit

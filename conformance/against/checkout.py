"""Checks sources out of another revision of their repository, into a folder of their own.

The repository is only read. For models of the zoo, the whole package `zoo` is checked out. For a file, its folder is
checked out, so that the modules it imports from there have the same revision. `conformance` is never checked out, and
for a file the zoo is not either.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import UsageError
from conformance.run import git
from conformance.run.judge import PACKAGES, folder_of


@dataclass(frozen=True)
class Checkout:
    """The sources of one revision.

    Attributes:
        name: name of the revision in tables: "now", or the short hash of the commit.
        sources: its models, as `conformance run` takes them.
        path: folders that its workers import from before all others.
    """

    name: str
    sources: tuple[str, ...]
    path: tuple[Path, ...]


def working_tree(sources: Sequence[str]) -> Checkout:
    """The sources as they are on the disk.

    Raises:
        UsageError: a source is a module, or files and models of the zoo are mixed.
    """
    files = [source for source in sources if source.endswith(".py")]
    for source in sources:
        if source not in files and ("." in source or ":" in source):
            raise UsageError(f"--against: {source} is a module; name its file, or a model of the zoo")
    if files and len(files) < len(sources):
        raise UsageError(
            f"--against: {files[0]} beside models of the zoo; compare files and the zoo one after the other"
        )
    return Checkout("now", tuple(str(Path(s).resolve()) if s in files else s for s in sources), _path())


def at_revision(current: Checkout, revision: str, folder: Path) -> Checkout:
    """The same sources at a revision.

    Args:
        current: the sources as they are now.
        revision: a commit, tag or branch, or anything else that git resolves to a commit.
        folder: the folder to put them into.

    Raises:
        UsageError: there is no git repository, no such revision, or the revision does not have the sources.
    """
    if current.sources and current.sources[0].endswith(".py"):
        taken = [_extract(Path(s), revision, folder / str(n)) for n, s in enumerate(current.sources)]
        return Checkout(taken[0][0], tuple(str(place) for _, place in taken), current.path)
    name, zoo = _extract(folder_of("zoo"), revision, folder)
    return Checkout(name, current.sources, (zoo.parent, *current.path))


def _path() -> tuple[Path, ...]:
    return tuple(dict.fromkeys(folder_of(package).parent for package in PACKAGES))


def _extract(path: Path, revision: str, folder: Path) -> tuple[str, Path]:
    """Unpack a folder, or the folder of a file, as it was; returns the commit's short name and the path's new place."""
    asked = f"--against {revision}"
    if not path.exists():
        raise UsageError(f"{asked}: no file {path}")
    top = Path(
        git.line(path.parent, "rev-parse", "--show-toplevel", otherwise=f"{asked}: {path} is in no git repository")
    )
    unknown = f"{asked}: no such revision in {top}"
    if revision.startswith("-"):
        raise UsageError(unknown)
    commit = git.line(top, "rev-parse", "--verify", f"{revision}^{{commit}}", otherwise=unknown)
    name = git.line(top, "rev-parse", "--short", commit, otherwise=unknown)
    inside = path.relative_to(top)
    absent = f"{asked}: {inside} is not in {name} of {top}"
    git.line(top, "cat-file", "-e", f"{commit}:{inside.as_posix()}", otherwise=absent)
    wanted = (inside if path.is_dir() else inside.parent).as_posix()
    archive = git.output(top, "archive", "--format=tar", commit, "--", wanted, otherwise=absent)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        if hasattr(tarfile, "data_filter"):  # Python 3.10 and 3.11 have it since a later patch
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)  # noqa: S202 -- git made it from a commit of this repository
    return name, folder / inside

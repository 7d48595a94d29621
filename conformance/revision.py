"""Sources as they were at another revision of their repository, in a folder of their own.

The repository is only read. Of the zoo's models the whole package `zoo` is taken; of a file its folder, so that what
it imports from beside it is as old as itself. `conformance`, and for a file the zoo too, stay what they are.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.axes import UsageError

OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # they name another repository than asked


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        name: what a table calls it.
        sources: its models, as `conformance run` takes them.
        path: folders that its processes import from before all others.
    """

    name: str
    sources: tuple[str, ...]
    path: tuple[Path, ...]


def now(sources: Sequence[str]) -> Side:
    """The sources as they lie on the disk.

    Raises:
        UsageError: a module instead of a file, or models of the zoo beside files.
    """
    files = [source for source in sources if source.endswith(".py")]
    for source in sources:
        if source not in files and ("." in source or ":" in source):
            raise UsageError(f"--against: {source} is a module; name its file, or a model of the zoo")
    if files and len(files) < len(sources):
        raise UsageError(
            f"--against: {files[0]} beside models of the zoo; compare files and the zoo one after the other"
        )
    return Side("now", tuple(str(Path(s).resolve()) if s in files else s for s in sources), _path())


def then(side: Side, revision: str, folder: Path) -> Side:
    """The same sources at a revision.

    Args:
        side: as they are now.
        revision: a commit, tag or branch, or whatever else git takes for one.
        folder: to put them into.

    Raises:
        UsageError: no git repository, no such revision, or the revision does not have them.
    """
    if side.sources and side.sources[0].endswith(".py"):
        taken = [_extract(Path(s), revision, folder / str(n)) for n, s in enumerate(side.sources)]
        return Side(taken[0][0], tuple(str(place) for _, place in taken), side.path)
    name, zoo = _extract(_home("zoo"), revision, folder)
    return Side(name, side.sources, (zoo.parent, *side.path))


def _path() -> tuple[Path, ...]:
    return tuple(dict.fromkeys(_home(package).parent for package in ("zoo", "conformance")))


def _home(package: str) -> Path:
    """Where a package lies; it is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).resolve().parent


def _extract(path: Path, revision: str, folder: Path) -> tuple[str, Path]:
    """Unpack a folder, or the folder of a file, as it was; returns the commit's short name and the path's new place."""
    asked = f"--against {revision}"
    if not path.exists():
        raise UsageError(f"{asked}: no file {path}")
    top = Path(_git(path.parent, "rev-parse", "--show-toplevel", otherwise=f"{asked}: {path} is in no git repository"))
    unknown = f"{asked}: no such revision in {top}"
    if revision.startswith("-"):
        raise UsageError(unknown)
    commit = _git(top, "rev-parse", "--verify", f"{revision}^{{commit}}", otherwise=unknown)
    name = _git(top, "rev-parse", "--short", commit, otherwise=unknown)
    inside = path.relative_to(top)
    absent = f"{asked}: {inside} is not in {name} of {top}"
    _git(top, "cat-file", "-e", f"{commit}:{inside.as_posix()}", otherwise=absent)
    wanted = (inside if path.is_dir() else inside.parent).as_posix()
    archive = _run(top, "archive", "--format=tar", commit, "--", wanted, otherwise=absent)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return name, folder / inside


def _git(folder: Path, *arguments: str, otherwise: str) -> str:
    return _run(folder, *arguments, otherwise=otherwise).decode().strip()


def _run(folder: Path, *arguments: str, otherwise: str) -> bytes:
    """What git prints.

    Raises:
        UsageError: it refuses; the message is `otherwise` and git's own last line.
    """
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_HOOK}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise UsageError(f"{otherwise} (there is no git)") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"{otherwise} ({told[-1]})" if told else otherwise)
    return done.stdout

"""Installs torch and all else into the environment of a nox session, and verifies that it is the torch asked for.

Whatever is not as it was asked for ends the session with one line.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from subprocess import STDOUT
from tempfile import TemporaryDirectory, TemporaryFile
from textwrap import shorten
from typing import Any

from nox import Session
from nox.command import CommandFailed
from nox.virtualenv import VirtualEnv
from packaging.version import InvalidVersion, Version
from pins import version, wrong

INDEX, NIGHTLY_INDEX = "TORCH_INDEX", "TORCH_NIGHTLY_INDEX"  # variables: where torch comes from, if not from the usual
FAILURE = re.compile(r"^\s*(error|fatal|×)", re.IGNORECASE | re.MULTILINE)
LONGEST_REASON = 300


def install(session: Session, torch: str, *others: str, pins: Mapping[str, str] | None = None) -> None:
    """Install a version of torch, then everything else, and verify torch after both steps.

    Args:
        session: the session.
        torch: the version.
        others: requirements and options of the installer.
        pins: further packages with the versions that they must have.
    """
    pins = {"torch": torch, **(pins or {})}
    _valid(session, pins)
    _obtain(session, f"torch=={torch}", *_from(session, os.environ.get(INDEX)))
    verify(session, {"torch": torch})
    _obtain(session, *others, *(f"{name}=={asked}" for name, asked in pins.items() if name != "torch"))
    verify(session, pins)


def install_latest(session: Session, *others: str, nightly: bool = False) -> str:
    """Install the newest torch, then everything else, and verify that it is still that torch.

    Args:
        session: the session.
        others: requirements and options of the installer.
        nightly: the newest nightly build.

    Returns:
        The version.
    """
    index = os.environ.get(NIGHTLY_INDEX if nightly else INDEX)
    if nightly and not index:
        session.error(f"{NIGHTLY_INDEX} is not set: it names the package index that holds nightly builds of torch")
    _obtain(session, "torch", *_from(session, index), *(["--pre"] if nightly else []))
    found = version(_facts(session), "torch")
    if nightly and not Version(found).is_devrelease:
        session.error(f"a nightly build of torch was asked for, and {NIGHTLY_INDEX} gave {found}")
    _obtain(session, *others)
    verify(session, {"torch": found})
    return found


def verify(session: Session, pins: Mapping[str, str]) -> None:
    """End the session unless each package has the version asked for, and Python imports that torch.

    Args:
        session: the session.
        pins: the versions asked for, by package; torch is among them.
    """
    problem = wrong(_facts(session), pins)
    if problem:
        session.error(problem)
    session.log(f"torch is the torch asked for, {pins['torch']}")


def install_first(session: Session, versions: Sequence[str], *others: str) -> None:
    """Install the first of some versions of torch that the installer can get, then everything else, and verify it.

    Args:
        session: the session, which ends with an error if it can get none.
        versions: the versions, the one that is wanted most first.
        others: requirements and options of the installer.
    """
    for number in versions:
        printed = _failure(session, f"torch=={number}", *_from(session, os.environ.get(INDEX)))
        if not printed:
            install(session, number, *others)
            return
        session.warn(f"torch {number} cannot be installed: {_reason(printed)}")
    session.error(f"no second torch was judged: none of {', '.join(versions)} can be installed")


def add(session: Session, libraries: Sequence[str]) -> None:
    """Install libraries beside the torch that is there, as far as they can be installed."""
    torch = version(_facts(session), "torch")
    with TemporaryDirectory() as folder:
        constraint = Path(folder, "constraint.txt")
        constraint.write_text(f"torch=={Version(torch).public}\n", encoding="utf-8")
        for library in libraries:
            if printed := _failure(session, "--constraint", str(constraint), library):
                session.warn(f"nothing of {library} is judged, it cannot be installed: {_reason(printed)}")
    verify(session, {"torch": torch})


@contextmanager
def removed(session: Session) -> Iterator[None]:
    """Remove the environment of a session at its end, unless `nox -r` asks to keep it: it takes up to 7 GB."""
    try:
        yield
    finally:
        environment = session.virtualenv
        if isinstance(environment, VirtualEnv) and not environment.reuse_existing:
            rmtree(environment.location, ignore_errors=True)


def _valid(session: Session, pins: Mapping[str, str]) -> None:
    for name, asked in pins.items():
        try:
            Version(asked)
        except InvalidVersion:
            session.error(f"{name} {asked!r}: want a version such as {name} 2.6.0")


def _from(session: Session, index: str | None) -> list[str]:
    """The option that names an index. uv prefers a person's UV_DEFAULT_INDEX to its --index-url."""
    return ["--default-index" if session.venv_backend == "uv" else "--index-url", index] if index else []


def _obtain(session: Session, *arguments: str) -> None:
    """Install; if that fails, show what the installer printed, and end the session with its reason on one line."""
    printed = _failure(session, *arguments)
    if printed:
        print(printed)  # noqa: T201
        python = session.python or platform.python_version()
        wanted = " ".join(argument for argument in arguments if "://" not in argument)
        session.error(f"{wanted} cannot be installed with Python {python} on {platform.machine()}: {_reason(printed)}")


def _failure(session: Session, *arguments: str) -> str:
    """Install; what the installer printed if that failed, or "" if it did not."""
    # not nox's create_tmp: it moves TMPDIR for all that the session runs, and the machine's lock lies there
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        try:
            session.install(*arguments, silent=False, stdout=printed, stderr=STDOUT)
        except CommandFailed:
            printed.seek(0)
            return printed.read() or "it printed nothing"
    return ""


def _reason(printed: str) -> str:
    """What the installer gives as its reason, from its first line that tells of a failure."""
    failure = FAILURE.search(printed)
    text = printed[failure.start() :] if failure else (printed.splitlines() or ["it printed nothing"])[-1]
    return shorten(text, LONGEST_REASON, placeholder=" …")


def _facts(session: Session) -> Any:
    """What .ci/installed.py prints in the environment of the session."""
    printed = session.run("python", str(Path(__file__).parent / "installed.py"), silent=True, log=False)
    return json.loads(str(printed).strip().splitlines()[-1])

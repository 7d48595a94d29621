"""Makes an environment with another version of torch, and the code of this project in a folder beside it.

The environment has this Python. `uv` makes it where it is installed; otherwise `venv` and pip do. What configures them
(index, proxy, folders of wheels) is left to them. The variable TORCH_INDEX names an index for torch alone.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import NotInstalledError
from conformance.one_line import one_line

NEEDED = (  # beside torch
    "filelock>=3.12",
    "packaging>=23",
    "pytest>=8",
    "pytest-xdist>=3.5",
    "setuptools>=68",
    "tabulate>=0.9",
)
INDEX = "TORCH_INDEX"
OWN = ("conformance", "zoo")
ELSEWHERE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # what lies there would count as installed
FAILURE = re.compile(r"^\s*(?:error|fatal|×)\W*(.*)", re.IGNORECASE)


def copy_code(folder: Path) -> Path:
    """Copy the packages of this project to a folder, so that every version judges with the same code.

    Returns:
        The folder, for the search path. It holds nothing else: no package that is installed beside this project.
    """
    for name in OWN:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(name)
        shutil.copytree(Path(found.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def holds_code(folder: Path) -> bool:
    """Whether a folder is the one from which this process imports this project."""
    return folder.resolve() == Path(__file__).resolve().parents[2]


def make(folder: Path, torch: str, others: Sequence[str]) -> Path:
    """Make an environment.

    Args:
        folder: its folder, which does not exist.
        torch: the version of torch.
        others: what else to install, in words of pip.

    Returns:
        The path of its Python.

    Raises:
        NotInstalledError: there is no such torch for this Python and machine, or something was not installed.
    """
    uv = shutil.which("uv")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    _carry_out(f"the environment for torch {torch}", _new(uv, folder))
    install = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    index = os.environ.get(INDEX)
    option = "--default-index" if uv else "--index-url"  # uv prefers a person's UV_DEFAULT_INDEX to its --index-url
    _carry_out(f"torch {torch}", [*install, f"torch=={torch}", *([option, index] if index else [])])
    _carry_out(" ".join(["what runs on it", *others]), [*install, f"torch=={torch}", *NEEDED, *others])
    return python


def _new(uv: str | None, folder: Path) -> list[str]:
    return [uv, "venv", "--python", sys.executable, str(folder)] if uv else [sys.executable, "-m", "venv", str(folder)]


def _carry_out(what: str, command: list[str]) -> None:
    """Run a command.

    Raises:
        NotInstalledError: it fails.
    """
    variables = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as problem:
        raise NotInstalledError(f"{what} was not installed: {problem.strerror or problem}") from None
    if done.returncode:
        python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        printed = done.stdout.decode(errors="replace")
        raise NotInstalledError(f"{what} was not installed with {python}: {reason(printed)}")


def reason(printed: str) -> str:
    r"""Why an installer failed, on one line: its last words that tell of an error, or its last line.

    >>> reason("ERROR: Could not find a version (from versions: 2.4)\nERROR: No matching distribution found\n")
    'No matching distribution found'
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [(place, found[1]) for place, line in enumerate(lines) if (found := FAILURE.match(line))]
    if not errors:
        return one_line(lines[-1]) if lines else "it printed nothing"
    place, text = errors[-1]
    return one_line(" ".join(" ".join([text, *lines[place + 1 :]]).split()))

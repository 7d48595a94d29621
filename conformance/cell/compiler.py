"""Finds out whether the C++ compiler that Inductor calls works, so that a machine without one blames no model."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from conformance.errors import NoCompilerError
from conformance.one_line import one_line
from conformance.process import process_table
from zoo import internals

SECONDS = 30.0  # for a program of one line
PROGRAM = '#include <cmath>\nextern "C" double root(double x) { return std::sqrt(x); }\n'
REMEDY = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install; "
    "Windows: Build Tools for Visual Studio), or set CXX to the path of one"
)
LENGTH = 120  # of what a compiler says


def require() -> None:
    """Do nothing if a compiler works.

    Raises:
        NoCompilerError: none does; the message names the one looked for, what is wrong, and how to get one.
    """
    found = complaint()
    if found:
        raise NoCompilerError(f"torch.compile needs a C++ compiler: {found}; {REMEDY}")


@cache
def complaint() -> str:
    """What is wrong with the compiler that Inductor calls; "" if nothing is. It is tried once in a process."""
    config = internals.inductor_config

    wanted = config.cpp.cxx if isinstance(config.cpp.cxx, (list, tuple)) else (config.cpp.cxx,)
    names = [name for name in wanted if name] if sys.platform != "win32" else ["cl"]
    complaints = []
    for name in names:
        found = _complaint_about(name)
        if not found:
            return ""
        complaints.append(f"{one_line(name, LENGTH)} {found}")
    return ", ".join(complaints)


def _complaint_about(name: str) -> str:
    if shutil.which(name) is None:
        return "is not found"
    if sys.platform == "win32":  # it takes other arguments, and Inductor asks it itself
        return ""
    try:
        folder = tempfile.TemporaryDirectory(prefix="conformance-compiler-", ignore_cleanup_errors=True)
    except OSError:  # no folder to try it in, so Inductor has to
        return ""
    with folder as place:
        return _trial(name, Path(place))


def _trial(name: str, folder: Path) -> str:
    source, library = folder / "trial.cpp", folder / "trial.so"
    source.write_text(PROGRAM)
    words = [name, "-shared", "-fPIC", "-o", str(library), str(source)]
    nowhere = subprocess.DEVNULL
    try:
        process = subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE)  # noqa: S603
    except OSError as problem:
        return f"cannot be run: {one_line(problem, LENGTH)}"
    try:
        said = process.communicate(timeout=SECONDS)[1].decode(errors="replace").strip().splitlines()
    except subprocess.TimeoutExpired:
        process_table.kill([*process_table.descendants(process.pid), process.pid])
        process.wait()
        return f"compiles nothing within {SECONDS:g} s"
    if process.returncode:
        why = f": {one_line(said[-1], LENGTH)}" if said else ""
        return f"ends with exit code {process.returncode}{why}"
    return "" if library.exists() and library.stat().st_size else "makes no library"

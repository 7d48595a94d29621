"""Finds out whether the C++ compiler that Inductor calls works and what it can, and compiles its header ahead.

So a machine without a compiler blames no model.
"""

import contextlib
import hashlib
import inspect
import os
import random
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from conformance.errors import NoCompilerError, name_of, one_line
from conformance.evaluate import error_text
from conformance.process import environment, process_table
from conformance.process.child_side import ChildProcess
from conformance.records.tasks import Nothing
from zoo import internals

SECONDS = 30.0  # for a program of one line
PROGRAM = '#include <cmath>\nextern "C" double root(double x) { return std::sqrt(x); }\n'
REMEDY = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install; "
    "Windows: Build Tools for Visual Studio), or set CXX to the path of one"
)
HEADER = "Python.h"
NO_HEADER = (
    f"torch.compile needs {HEADER}, which is missing; install Python's headers (Debian, Ubuntu: apt install "
    "python3-dev; Fedora: dnf install python3-devel)"
)
LENGTH = 120  # of what a compiler says


def require() -> None:
    """Do nothing if a compiler works.

    Raises:
        NoCompilerError: none does, or Python's headers are missing; the message names the one looked for, what is
            wrong, and how to get it.
    """
    found = complaint()
    if found:
        raise NoCompilerError(f"torch.compile needs a C++ compiler: {found}; {REMEDY}")
    if lacks_python():
        raise NoCompilerError(NO_HEADER)


@cache
def complaint() -> str:
    """What is wrong with the compiler that Inductor calls; "" if nothing is. It is tried once in a process."""
    complaints = []
    for name in _names():
        found = _complaint_about(name)
        if not found:
            return ""
        complaints.append(f"{one_line(name, LENGTH)} {found}")
    return ", ".join(complaints)


def compile_the_simplest(task: Nothing, process: ChildProcess) -> Nothing:
    """Child process: compile a model that cannot be wrong, and that nobody has compiled before.

    Raises:
        NoCompilerError: something goes wrong; the message names the compilers, and says what.
    """
    with process.shared():
        x, factor = torch.arange(3.0), random.random()  # noqa: S311 -- nobody guesses it
        try:
            same = torch.equal(torch.compile(lambda x: x * factor)(x), x * factor)
        except Exception as problem:
            why = f"{name_of(problem)}: {error_text.one_line(problem)}"
            raise NoCompilerError(f"with {' or '.join(_names())}: {why}") from problem
    if not same:
        raise NoCompilerError(f"with {' or '.join(_names())} it gives other numbers")
    return task


@cache
def lacks_python() -> bool:
    """Whether the header that torch's kernels include is neither where Python has it nor where the compiler looks."""
    schemes = ("nt",) if sys.platform == "win32" else ("posix_prefix", sysconfig.get_default_scheme())
    folders = [sysconfig.get_path("include", scheme=scheme) for scheme in schemes]
    return not any(Path(folder, HEADER).exists() for folder in folders) and not any(map(_finds_header, _names()))


def _finds_header(name: str) -> bool:
    words, nowhere = [name, "-E", "-x", "c++", "-include", HEADER, os.devnull], subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, check=False, timeout=SECONDS, stdin=nowhere, stdout=nowhere, stderr=nowhere)  # noqa: S603
        return done.returncode == 0
    return False


def _names() -> list[str]:
    """The compilers that Inductor looks for, in its order."""
    if sys.platform == "win32":
        return ["cl"]
    wanted = internals.inductor_config.cpp.cxx
    return [name for name in (wanted if isinstance(wanted, (list, tuple)) else (wanted,)) if name]


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


# Precompiles the header that all of Inductor's C++ kernels include, where torch does not do so itself (before 2.8).
#
# A kernel of 20 lines includes a header of 400 000. GCC takes HEADER.gch in its place if both were compiled with the
# same flags, so the kernels stay what they are, and take 1.1 seconds instead of 2.8 each.

LINKING = ("-shared", "-Wl,", "-l", "-L")  # begin words that are for the linker


def lacks_header() -> bool:
    """Whether torch compiles that header again for each kernel."""
    return not hasattr(internals.inductor_config, "cpp_cache_precompile_headers")


def precompile_header(seconds: float) -> None:
    """Precompile the header in the folder of compiled code, unless it is there, in so many seconds at most.

    Raises:
        An error of torch, of the compiler or of the machine; kernels then compile without it.
    """
    header = Path(internals.path_of_header())
    made = header.with_name(f"{header.name}.gch")
    command = _command(internals.pick_instructions(), header)
    if made.exists() or "g++" not in Path(command[0]).name:
        return
    with tempfile.TemporaryDirectory(dir=header.parent) as folder:
        draft = Path(folder) / made.name
        subprocess.run(  # noqa: S603 -- torch's own command
            [*command, "-x", "c++-header", str(header), "-o", str(draft)],
            check=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.replace(draft, made)  # noqa: PTH105 -- whole or not at all


def _command(vec_isa: object, header: Path) -> list[str]:
    """The command with which torch compiles a kernel for the CPU, without its files and libraries."""
    options = internals.CppOptions
    for_cpu = {"cuda": False} if "cuda" in inspect.signature(options).parameters else {"device_type": "cpu"}
    kernel = internals.CppBuilder(name="kernel", sources=str(header), BuildOption=options(vec_isa=vec_isa, **for_cpu))
    words = shlex.split(kernel.get_command_line())
    output = words.index("-o")
    del words[output : output + 2]
    return [w for w in words if w != str(header) and not w.startswith(LINKING)]


# Finds the vector instructions that Inductor's C++ kernels may use, once for all fork servers of the machine.
#
# For each set of them torch compiles a program and loads it in a process that imports torch, and it lets one process of
# the machine do so at a time. With a fork server for each of 16 cores, the last one would wait minutes for the others.

NEEDED = ("build_arch_flags", "check_build")  # methods of a set of instructions; torch 2.4 lacks the second


def find_instructions() -> None:
    """Let torch find those that work; it keeps the list for the life of a process.

    That a set works is noted in the folder of compiled code. That one fails is not: the machine may be to blame.
    """
    instructions = internals.Instructions
    folder = environment.cache_in_use()
    if folder is None or not all(hasattr(instructions, name) for name in NEEDED):
        internals.find_instructions()
        return
    compiler = internals.version_of_compiler(internals.find_cpp_compiler())
    check = instructions.check_build

    def noted(chosen: Any, program: str) -> bool:
        asked = f"{compiler} {chosen} {chosen.build_arch_flags()} {program}"
        note = folder / f"vector-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{note}.lock"):
            if not note.exists() and check(chosen, program):
                note.touch()
            return note.exists()

    instructions.check_build = noted
    try:
        internals.find_instructions()
    finally:
        instructions.check_build = check

"""Finds the vector instructions that Inductor's C++ kernels may use, once for all fork servers of the machine.

For each set of them torch compiles a program and loads it in a process that imports torch, and it lets one process of
the machine do so at a time. With a fork server for each of 16 cores, the last one would wait minutes for the others.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from typing import Any

from filelock import FileLock

from conformance.run import environment

NEEDED = ("build_arch_flags", "check_build")  # methods of a set of instructions; torch 2.4 lacks the second


def find() -> None:
    """Let torch find those that work; it keeps the list for the life of a process.

    That a set works is noted in the folder of compiled code. That one fails is not: the machine may be to blame.
    """
    from torch._inductor import cpp_builder  # noqa: PLC0415 -- only cells that compile need it

    module = "cpu_vec_isa" if importlib.util.find_spec("torch._inductor.cpu_vec_isa") else "codecache"  # torch 2.4
    home = importlib.import_module(f"torch._inductor.{module}")
    folder = environment.cache_in_use()
    if folder is None or not all(hasattr(home.VecISA, name) for name in NEEDED):
        home.valid_vec_isa_list()
        return
    compiler = cpp_builder.get_compiler_version_info(cpp_builder.get_cpp_compiler())
    check = home.VecISA.check_build

    def noted(instructions: Any, program: str) -> bool:
        asked = f"{compiler} {instructions} {instructions.build_arch_flags()} {program}"
        note = folder / f"vector-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{note}.lock"):
            if not note.exists() and check(instructions, program):
                note.touch()
            return note.exists()

    home.VecISA.check_build = noted
    try:
        home.valid_vec_isa_list()
    finally:
        home.VecISA.check_build = check

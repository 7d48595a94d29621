"""Finds the vector instructions that Inductor's C++ kernels may use, once for all fork servers of the machine.

For each set of them torch compiles a program and loads it in a process that imports torch, and it lets one process of
the machine do so at a time. With a fork server for each of 16 cores, the last one would wait minutes for the others.
"""

from __future__ import annotations

import hashlib
from typing import Any

from filelock import FileLock

from conformance.process import environment
from zoo import internals

NEEDED = ("build_arch_flags", "check_build")  # methods of a set of instructions; torch 2.4 lacks the second


def find() -> None:
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

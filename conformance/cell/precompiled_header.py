"""Precompiles the header that all of Inductor's C++ kernels include, where torch does not do so itself (before 2.8).

A kernel of 20 lines includes a header of 400 000. GCC takes HEADER.gch in its place if both were compiled with the same
flags, so the kernels stay what they are, and take 1.1 seconds instead of 2.8 each.
"""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from zoo import internals

LINKING = ("-shared", "-Wl,", "-l", "-L")  # begin words that are for the linker


def is_needed() -> bool:
    """Whether torch compiles that header again for each kernel."""
    return not hasattr(internals.inductor_config, "cpp_cache_precompile_headers")


def make(seconds: float) -> None:
    """Precompile the header in the folder of compiled code, unless it is there.

    Args:
        seconds: the most that it may take.

    Raises:
        An error of torch, of the compiler or of the machine; kernels then compile without it.
    """
    header = Path(internals.path_of_header())
    made = header.with_name(f"{header.name}.gch")
    command = _command(internals.pick_instructions(), header)
    if made.exists() or "g++" not in Path(command[0]).name:
        return
    with TemporaryDirectory(dir=header.parent) as folder:
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

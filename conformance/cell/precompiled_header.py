"""Precompiles the header that all of Inductor's C++ kernels include, where torch does not do so itself (before 2.8).

A kernel of 20 lines includes a header of 400 000. GCC takes HEADER.gch in its place if both were compiled with the same
flags, so the kernels stay what they are, and take 1.1 seconds instead of 2.8 each.
"""

from __future__ import annotations

import importlib
import inspect
import os
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

LINKING = ("-shared", "-Wl,", "-l", "-L")  # begin words that are for the linker


def is_needed() -> bool:
    """Whether torch compiles that header again for each kernel."""
    from torch._inductor import config  # noqa: PLC0415 -- only cells that compile need it

    return not hasattr(config, "cpp_cache_precompile_headers")


def make(seconds: float) -> None:
    """Precompile the header in the folder of compiled code, unless it is there.

    Args:
        seconds: the most that it may take.

    Raises:
        An error of torch, of the compiler or of the machine; kernels then compile without it.
    """
    codecache = importlib.import_module("torch._inductor.codecache")  # its stubs lack what torch < 2.8 has
    header = Path(codecache.cpp_prefix_path())
    made = header.with_name(f"{header.name}.gch")
    command = _command(codecache.pick_vec_isa(), header)
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
    cpp_builder = importlib.import_module("torch._inductor.cpp_builder")
    options = getattr(cpp_builder, "CppTorchDeviceOptions", None) or cpp_builder.CppTorchCudaOptions
    for_cpu = {"cuda": False} if "cuda" in inspect.signature(options).parameters else {"device_type": "cpu"}
    kernel = cpp_builder.CppBuilder(name="kernel", sources=str(header), BuildOption=options(vec_isa=vec_isa, **for_cpu))
    words = shlex.split(kernel.get_command_line())
    output = words.index("-o")
    del words[output : output + 2]
    return [w for w in words if w != str(header) and not w.startswith(LINKING)]

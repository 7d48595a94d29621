"""What child processes inherit from the environment. Nothing else sets these variables."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from conformance.records.plan import Environment

CACHE, THREADS, PRELOAD = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "CONFORMANCE_PRELOAD"


def inherited(cache: Path, *, compiles: bool) -> dict[str, str]:
    """The variables of child processes.

    Args:
        cache: folder of compiled code.
        compiles: some child will call the compiler, so the fork server loads it once for all of them.
    """
    return {
        CACHE: str(cache),
        THREADS: "1",  # no pool of compilers beside each cell
        PRELOAD: "compiler" if compiles else "",
    }


def prepare_children(cache: Path, *, compiles: bool) -> None:
    """Set the variables for all children to come; see `inherited`. It has an effect until the fork server starts."""
    os.environ.update(inherited(cache, compiles=compiles))


def use_cache(folder: str) -> None:
    """Child process: keep compiled code in a folder of its own, before anything is compiled."""
    os.environ[CACHE] = folder


def loads_compiler() -> bool:
    """Whether the fork server is to load the compiler."""
    return os.environ.get(PRELOAD) == "compiler"


def cache_of(known: Environment) -> Path:
    """The compile cache of this torch on this processor."""
    key = hashlib.sha256(f"{known.cpu} {known.cpu_capability}".encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return base / "torch-conformance" / f"{known.torch}-{key}"

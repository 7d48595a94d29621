"""Sets the environment variables that child processes inherit. No other module sets them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from conformance.records.plan import Environment

CACHE, THREADS, PRELOAD = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "CONFORMANCE_PRELOAD"


def inherited(cache: Path | None, *, compiles: bool) -> dict[str, str]:
    """The variables of child processes.

    Args:
        cache: folder of compiled code; None: torch's own choice.
        compiles: some child will call the compiler, so the fork server loads it once for all of them.

    >>> inherited(Path("cache"), compiles=True)
    {'TORCHINDUCTOR_CACHE_DIR': 'cache', 'TORCHINDUCTOR_COMPILE_THREADS': '1', 'CONFORMANCE_PRELOAD': 'compiler'}
    """
    return {
        **({} if cache is None else {CACHE: str(cache)}),
        THREADS: "1",  # no pool of compiler processes for each cell
        PRELOAD: "compiler" if compiles else "",
    }


def prepare_children(cache: Path | None, *, compiles: bool) -> None:
    """Set the variables of all later children; see `inherited`. Call it before the fork server starts."""
    os.environ.update(inherited(cache, compiles=compiles))


def use_cache(folder: str) -> None:
    """Child process: keep compiled code in a folder of its own. Call it before anything is compiled."""
    os.environ[CACHE] = folder


def loads_compiler() -> bool:
    """Whether the fork server should load the compiler."""
    return os.environ.get(PRELOAD) == "compiler"


def cache_of(known: Environment) -> Path:
    """The folder of the compile cache for a version of torch and a processor."""
    key = hashlib.sha256(f"{known.cpu} {known.cpu_capability}".encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return base / "torch-conformance" / f"{known.torch}-{key}"

"""Sets the environment variables that child processes inherit. No other module sets them."""

import hashlib
import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from conformance.records.plan import Environment

CACHE, THREADS = "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"
COMPILES_FOR, REFERENCES, CORES = "CONFORMANCE_COMPILES_FOR", "CONFORMANCE_REFERENCES", "CONFORMANCE_CORES"
VISIBLE, GPU, AT_ONCE = "CUDA_VISIBLE_DEVICES", "CONFORMANCE_GPU", "CONFORMANCE_GPU_AT_ONCE"
OWN = (CACHE, REFERENCES, CORES, THREADS, COMPILES_FOR, VISIBLE, GPU, AT_ONCE)


CHANGE_COMPILERS = ("AOT_INDUCTOR_", "PYTORCH_JIT", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TRITON_")
FOLDERS = "_CACHE_DIR"  # so end those that name a folder of compiled code, which is the run's own matter


def compiler_variables() -> tuple[str, ...]:
    """The names of the variables that are set and change what compilers do, as far as their beginnings tell."""
    names = (name for name, value in os.environ.items() if value and name.startswith(CHANGE_COMPILERS))
    return tuple(sorted(name for name in names if name not in OWN and not name.endswith(FOLDERS)))


def inherited(
    cache: Path | None, *, compiles_for: Collection[str], references: Path | None = None, cores: str = ""
) -> dict[str, str]:
    """The variables of child processes.

    Args:
        cache: folder of compiled code; None: torch's own choice.
        compiles_for: the device types for which some child will compile, so that the fork server prepares for it.
        references: folder of the references that runs keep; None to keep none.
        cores: number of cores that the run may use, if a person gave one.

    >>> inherited(Path("cache"), compiles_for=("cpu", "cuda"))["CONFORMANCE_COMPILES_FOR"]
    'cpu cuda'
    """
    return {
        **({} if cache is None else {CACHE: str(cache)}),
        REFERENCES: "" if references is None else str(references),
        CORES: cores,
        THREADS: "1",  # no pool of compiler processes for each cell
        COMPILES_FOR: " ".join(compiles_for),
    }


def prepare_children(
    cache: Path | None, *, compiles_for: Collection[str], references: Path | None = None, cores: str = ""
) -> None:
    """Set the variables of all later children; see `inherited`."""
    os.environ.update(inherited(cache, compiles_for=compiles_for, references=references, cores=cores))


def compile_for(devices: Collection[str]) -> None:
    """Let the fork server prepare for more device types. One that has not is replaced, and its children end."""
    os.environ[COMPILES_FOR] = " ".join(sorted(compiles_for().union(devices)))


def of_children() -> dict[str, str]:
    """Those of these variables that are set in this process. If it uses a GPU, its children see this one alone.

    So whatever a model calls "cuda" is that GPU. A child sets them before it calls CUDA, and no fork server calls it.
    """
    found = {name: os.environ[name] for name in OWN if name in os.environ}
    number, visible = found.get(GPU), found.get(VISIBLE)
    if number is None:
        return found
    return {**found, VISIBLE: visible.split(",")[int(number)].strip() if visible else number}


def use_gpu(numbers: Sequence[int]) -> None:
    """Let later children use one of these GPUs: in worker i of xdist, the i-th in turn; elsewhere, the first.

    They are numbered as torch counts those that are visible; there may be none. A worker that replaces one that died
    has another number.
    """
    if numbers:
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        turn = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers % len(numbers)
        os.environ[GPU] = str(numbers[turn])
        os.environ[AT_ONCE] = str(len(range(turn, workers, len(numbers))))


def gpu_in_use() -> int | None:
    """The number of the GPU that children use; None if none was chosen."""
    return int(os.environ[GPU]) if GPU in os.environ else None


def at_once_on_gpu() -> int:
    """How many processes may use the GPU of this one at the same time."""
    return int(os.environ.get(AT_ONCE, "1"))


def use_cache(folder: str) -> None:
    """Child process: keep compiled code in a folder of its own. Call it before anything is compiled."""
    os.environ[CACHE] = folder


def compiles_for() -> frozenset[str]:
    """The device types for which the fork server should prepare to compile; it loads the compiler if there are any."""
    return frozenset(os.environ.get(COMPILES_FOR, "").split())


def cache_in_use() -> Path | None:
    """The folder of compiled code that all children share; None if it is torch's own choice."""
    folder = os.environ.get(CACHE)
    return Path(folder) if folder else None


def references_in_use() -> Path | None:
    """The folder of the references that runs keep; None if none are kept."""
    folder = os.environ.get(REFERENCES)
    return Path(folder) if folder else None


def cores() -> int:
    """How many cores this run may use: as many as a person said, or else all."""
    given = os.environ.get(CORES, "")
    return max(int(given), 1) if given.isdecimal() else os.cpu_count() or 1


def references_of(known: Environment) -> Path:
    """The folder of the references that runs keep for a version of torch and a processor."""
    cache = cache_of(known)
    return cache.with_name(f"{cache.name}-references")


def cache_of(known: Environment) -> Path:
    """The folder of the compile cache for a version of torch and a processor; `why_unusable` tells if it is of no use.

    It is in the folder that XDG_CACHE_HOME names, or in ~/.cache if that is empty or no absolute path.
    """
    key = hashlib.sha256(f"{known.cpu} {known.cpu_capability}".encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 -- Path.expanduser raises if there is no home
    return base / "torch-conformance" / f"{known.torch}-{key}"


def why_unusable(cache: Path) -> str:
    """Why nothing can be stored in a folder, which is made if it is missing; "" if something can."""
    if not cache.is_absolute():
        return "this user has no home folder"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache) as file:
            file.write(bytes(4096))
    except OSError as problem:
        return str(problem.strerror or problem)
    return ""

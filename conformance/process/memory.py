"""Reads how much memory this process has needed and how much is free, and says early if that is too little."""

import contextlib
import re
from pathlib import Path

SELF, MEMORY, GROUP = Path("/proc/self"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")
KIB, GIB = 2**10, 2**30
GROWTH = 1.5  # freed blocks of one size do not serve for another; docs/performance.md has what models need


def ensure_room(more: int) -> None:
    """See that a process can hold more, and do again what it has done so far. Only Linux tells.

    Args:
        more: bytes that it will hold, beside what it has needed so far.

    Raises:
        MemoryError: this needs more memory than is free.
    """
    with contextlib.suppress(OSError):
        wanted, room = GROWTH * (needed() + more), free() + _bytes_of(SELF / "status", "VmRSS")
        if wanted > room:
            raise MemoryError(
                f"the reference needs about {wanted / GIB:.1f} GiB of memory, and {room / GIB:.1f} GiB are free; "
                "judge the model at smaller sizes, or where more is free"
            )


def needed() -> int:
    """The most memory that this process has held, in bytes.

    Raises:
        OSError: the system does not tell.
    """
    return _bytes_of(SELF / "status", "VmHWM")


def free() -> int:
    """The bytes that the machine has free, or the control group of this process if that has less.

    Raises:
        OSError: the system does not tell.
    """
    room = _bytes_of(MEMORY, "MemAvailable")
    with contextlib.suppress(OSError, ValueError):  # the group has no limit, or the system does not tell
        limit, used = (int((GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        room = min(room, limit - used)
    return max(0, room)


def _bytes_of(path: Path, name: str) -> int:
    """A number of a file of the system, which gives it in kB."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{path} does not tell {name}")
    return int(found[1]) * KIB

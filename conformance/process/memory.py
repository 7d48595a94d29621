"""Says early if this process needs more memory than is free, and keeps what it has freed."""

import contextlib
import ctypes
import re
import sys
from pathlib import Path

SELF, MEMORY, GROUP = Path("/proc/self"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")
KIB, GIB = 2**10, 2**30
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # numbers of malloc.h
LARGEST_THRESHOLD = 2**31 - 1  # that its call takes
GIVEN_BACK = 4 * 2**20  # bytes of a block that is worth a call of the system
SPARING, KEEPING = 1.3, 2.0  # times what is held at once: where freed memory is given back, and where it is kept


def ensure_room(more: int) -> None:
    """See that a process can hold more, and do again what it has done so far. Only Linux tells.

    If there is enough room for it, freed memory is kept from here on, which saves time; else it is given back.

    Args:
        more: bytes that it will hold, beside what it has needed so far.

    Raises:
        MemoryError: this needs more memory than is free.
    """
    with contextlib.suppress(OSError):
        held, room = needed() + more, free() + _bytes_of(SELF / "status", "VmRSS")
        if SPARING * held > room:
            raise MemoryError(
                f"the reference needs about {SPARING * held / GIB:.1f} GiB of memory, and {room / GIB:.1f} GiB are "
                "free; judge the model at smaller sizes, or where more is free"
            )
        if KEEPING * held <= room:
            keep_freed()
        else:
            give_back_freed()


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


def keep_freed() -> None:
    """Give no block of memory back to the system from here on, where the C library is glibc; else do nothing.

    By default, glibc gives large blocks back, and the next tensor of the same size is paid for page by page. That is a
    seventh of the time of a large model's reference, which allocates the same sizes in every run. A call of 5 ms that
    allocates megabytes takes up to twice as long when it has to pay.
    """
    _set({MMAP_MAX: 0, TRIM_THRESHOLD: LARGEST_THRESHOLD})


def give_back_freed() -> None:
    """Give each large block back to the system once it is freed, where the C library is glibc; else do nothing.

    By default, glibc keeps blocks of up to 32 MiB, the size of most weights of a large model, and leaves gaps.
    """
    _set({MMAP_THRESHOLD: GIVEN_BACK})


def _set(options: dict[int, int]) -> None:
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for option, value in options.items():
            mallopt(option, value)

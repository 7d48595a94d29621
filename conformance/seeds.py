"""Makes the seeds of all random numbers."""

import zlib


def seed_of(*parts: object) -> int:
    """A seed that depends on all the parts, the same in every process.

    >>> seed_of(0, "typical") == seed_of(0, "typical") != seed_of(1, "typical")
    True
    """
    return zlib.crc32("/".join(map(str, parts)).encode())

"""Lists the versions of torch that the zoo is judged on, the last of each minor version."""

from __future__ import annotations

VERSIONS = (
    "2.4.1",
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)
DEFAULT = "2.13.0"  # of every command that is not given a version
PYTHON = "3.11"  # all of them have wheels for it, so a difference between two runs is torch's and not Python's

"""Lists the versions of torch that the zoo is judged on, the last of each minor version, and those of Python."""

import importlib.util
import platform
from importlib import metadata

from conformance.errors import describe_error

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
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # on which it has been tried


def complaint() -> str:
    """Why this Python, or the torch that is installed for it, is not supported, in one line; "" if both are."""
    return complaint_about_python() or complaint_about_torch()


def complaint_about_python() -> str:
    """Why this Python is not supported; "" if it is. Any Python can ask, so nothing but its own library is needed."""
    here, known = _minor(platform.python_version()), f"{PYTHONS[0]} to {PYTHONS[-1]} are supported"
    if here < _minor(PYTHONS[0]):
        return f"Python {platform.python_version()} is too old; {known}"
    if here > _minor(PYTHONS[-1]):
        return f"Python {platform.python_version()} has not been tried; {known}"
    return ""


def complaint_about_torch() -> str:
    """Why the installed torch is not supported; "" if it is. A newer one than those listed is not refused."""
    known = f"{'.'.join(map(str, _minor(VERSIONS[0])))} and newer are supported"
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "" if importlib.util.find_spec("torch") else f"torch is not installed; {known}"
    return f"torch {torch} is too old; {known}" if _minor(torch) < _minor(VERSIONS[0]) else ""


def complaint_about_import() -> str:
    """Why torch does not import, in one line; "" if it does. It takes seconds: ask where something did not import."""
    try:
        importlib.import_module("torch")
    except Exception as problem:  # noqa: BLE001 -- a half-installed torch may raise anything
        return f"torch is installed, and its import fails: {describe_error(problem)}; install it again"
    return ""


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)

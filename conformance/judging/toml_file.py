"""Reads TOML files of people."""

import sys
from pathlib import Path
from typing import Any

from conformance.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]  # pytest brings it


def read(path: Path) -> dict[str, Any]:
    """The tables of a file.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: it cannot be read, or it is no TOML.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise UsageError(f"{path} is no TOML file: {problem}") from None


def parse(text: str) -> dict[str, Any]:
    """The tables of a text.

    Raises:
        ValueError: it is no TOML.
    """
    tables: dict[str, Any] = tomllib.loads(text)
    return tables

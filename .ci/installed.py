"""Prints as JSON what is installed where it runs: every package with its requirements, and the torch that is imported.

It needs the standard library alone, because it also runs where nothing but torch is installed.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any


def facts() -> dict[str, Any]:
    """The packages that are installed, and the torch that Python imports."""
    packages = [
        {"name": found.metadata["Name"], "version": found.version, "requires": found.requires or []}
        for found in metadata.distributions()
    ]
    return {"packages": packages, "torch": _imported()}


def _imported() -> dict[str, str]:
    """The version and the place of the torch that Python imports, or why it imports none."""
    try:
        import torch  # noqa: PLC0415
    except Exception as problem:  # noqa: BLE001 -- a broken torch may raise anything
        return {"problem": f"{type(problem).__name__}: {problem}"}
    return {"version": torch.__version__, "file": torch.__file__}


if __name__ == "__main__":
    print(json.dumps(facts()))  # noqa: T201

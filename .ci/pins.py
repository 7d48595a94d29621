"""Compares what is installed with what was asked for: `python .ci/pins.py torch==2.6.0`, for the Python that runs it.

The exit code is 1, with one line, if something else is installed, or if Python imports another torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import installed
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def wrong(facts: Any, pins: Mapping[str, str]) -> str:
    """What is not as it was asked for, in one line; "" if all is.

    Args:
        facts: what `installed.facts` returns.
        pins: the versions asked for, by package; torch is among them.
    """
    for name, asked in pins.items():
        found = version(facts, name)
        if not found:
            return f"{name} {asked} was asked for, and is not installed"
        if not _is(asked, found):
            return f"{name} {asked} was asked for, and {found} is installed: {_culprits(facts, name, asked)}"
    torch, asked = facts["torch"], pins["torch"]
    if "problem" in torch:
        return f"torch {asked} is installed, and its import fails: {torch['problem']}"
    if not _is(asked, torch["version"]):
        return f"torch {asked} is installed, but Python imports {torch['version']} from {torch['file']}"
    return ""


def version(facts: Any, name: str) -> str:
    """The installed version of a package; "" if it is not installed."""
    wanted = canonicalize_name(name)
    return next((p["version"] for p in facts["packages"] if canonicalize_name(p["name"]) == wanted), "")


def _is(asked: str, found: str) -> bool:
    return SpecifierSet(f"=={asked}").contains(found, prereleases=True)


def _culprits(facts: Any, name: str, asked: str) -> str:
    """The installed packages that require another version of a package than the one asked for."""
    culprits = [
        f"{package['name']} {package['version']} requires {requirement}"
        for package in facts["packages"]
        for requirement in map(Requirement, package["requires"])
        if canonicalize_name(requirement.name) == canonicalize_name(name)
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and not requirement.specifier.contains(asked, prereleases=True)
    ]
    return "; ".join(culprits) or "no installed package requires another version"


def _main(words: list[str]) -> str:
    try:
        pins = {pin.name: next(iter(pin.specifier)).version for pin in map(Requirement, words)}
    except (InvalidRequirement, StopIteration):
        return f"want requirements such as torch==2.6.0, got {' '.join(words)}"
    return wrong(installed.facts(), pins)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]) or 0)

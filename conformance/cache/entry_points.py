"""Finds the models that installed packages bring: the entry points of the group `conformance.models`."""

from __future__ import annotations

from importlib import metadata

from conformance.errors import UsageError

GROUP = "conformance.models"


def place_of(name: str) -> str:
    """The module that an installed package declares under a name, such as "package.specs"; "" if none does.

    Raises:
        UsageError: two packages declare different modules under it.
    """
    entries = metadata.entry_points(group=GROUP, name=name)
    found = {entry.value: entry.dist.name if entry.dist else "?" for entry in entries}
    if len(found) > 1:
        places = " and ".join(f"{module} by {package}" for module, package in sorted(found.items()))
        raise UsageError(f"{name!r} is declared twice in the group {GROUP}: as {places}; name the module")
    return next(iter(found), "")

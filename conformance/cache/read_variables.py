"""Notes which environment variables a process reads. What native code reads is not seen, as with `read_files`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from conformance.process import environment


@contextlib.contextmanager
def note_variables() -> Iterator[set[str]]:
    """A context that gives the names of the variables that Python code asks for in it."""
    names: set[str] = set()
    kind = type(os.environ)
    plain = kind.__getitem__

    def noting(self: Any, name: Any) -> Any:
        names.add(os.fsdecode(name))
        return plain(self, name)

    with mock.patch.object(kind, "__getitem__", noting):
        yield names


def contents(names: set[str]) -> dict[str, str]:
    """What tells the value of each variable, by name; without those that this project sets itself."""
    return {name: content(name) for name in sorted(names.difference(environment.OWN))}


def content(name: str) -> str:
    """The digest of a variable, because it may hold a secret; "" if it is not set."""
    value = os.environ.get(name)
    return "" if value is None else hashlib.blake2b(os.fsencode(value), digest_size=16).hexdigest()

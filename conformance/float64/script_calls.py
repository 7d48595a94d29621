"""Tells whether Python code calls TorchScript, whose first calls may round differently from later ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

SCRIPTS = (torch.jit.ScriptFunction, torch.ScriptMethod)


@contextlib.contextmanager
def note_scripts() -> Iterator[set[type]]:
    """A context that tells which kinds of scripts were called in it. What compiled code has taken in is not called."""
    called: set[type] = set()

    def watched(kind: type) -> Any:
        plain = kind.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(kind)
            return plain(self, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for kind in SCRIPTS:
            stack.enter_context(mock.patch.object(kind, "__call__", watched(kind)))
        yield called

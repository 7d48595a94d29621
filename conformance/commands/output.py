"""What a command prints beside its result."""

from __future__ import annotations

import sys

from conformance.show.text import visible


def say(text: str) -> None:
    """Print a message on the error stream."""
    print(f"conformance: {visible(text)}", file=sys.stderr)  # noqa: T201 -- this is the interface


def progress(line: str) -> None:
    """Print progress on the error stream: a page may be on the other."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201

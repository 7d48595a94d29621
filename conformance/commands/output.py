"""Prints messages and progress on the error stream."""

from __future__ import annotations

import sys

from conformance.show.text import printable, visible


def say(text: str) -> None:
    """Print a message on the error stream."""
    print(f"conformance: {visible(text)}", file=sys.stderr)  # noqa: T201 -- this is the interface


def tell(text: str) -> None:
    """Print a part of a report on the output stream. What it quotes cannot command the terminal."""
    print(printable(text), flush=True)  # noqa: T201 -- this is the interface


def progress(line: str) -> None:
    """Print a line of progress on the error stream, because the output stream may hold a page."""
    print(printable(line), file=sys.stderr, flush=True)  # noqa: T201

"""Reads the values of options. Each function raises `ArgumentTypeError` with what was asked and what was given."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

NumberT = TypeVar("NumberT", int, float)

MOST_WORKERS, LARGEST_SEED, LONGEST, LONGEST_COUNT = 1024, 2**63 - 1, 1e7, 6


def workers(text: str) -> str:
    """A number of processes."""
    if not text.isascii() or not text.isdigit() or int(text) > MOST_WORKERS:
        raise ArgumentTypeError(f"want a number of processes from 0 to {MOST_WORKERS}, got {text!r}")
    return str(int(text))


def seed(text: str) -> int:
    """A seed that torch takes."""
    seed = _number(int, text, "a whole number")
    if not 0 <= seed <= LARGEST_SEED:
        raise ArgumentTypeError(f"want a whole number from 0 to {LARGEST_SEED}, got {text!r}")
    return seed


def seconds(text: str) -> float:
    """A number of seconds that passes."""
    seconds = _number(float, text, "a number of seconds")
    if not 0 < seconds <= LONGEST:
        raise ArgumentTypeError(f"want a number of seconds above 0, at most {LONGEST:g}, got {text!r}")
    return seconds


def shard(text: str) -> tuple[int, int]:
    """Which part of how many."""
    index, slash, count = text.partition("/")
    if not slash or not all(part.isascii() and part.isdigit() and len(part) < LONGEST_COUNT for part in (index, count)):
        raise ArgumentTypeError(f"want a shard such as 1/4, got {text!r}")
    if not 1 <= int(index) <= int(count):
        raise ArgumentTypeError(f"want a shard from 1/{int(count)} on, got {text!r}")
    return int(index), int(count)


def _number(kind: Callable[[str], NumberT], text: str, what: str) -> NumberT:
    try:
        return kind(text)
    except ValueError:
        raise ArgumentTypeError(f"want {what}, got {text!r}") from None

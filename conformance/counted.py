"""Says a number with its noun, and the first names of a list."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless it is one.

    >>> counted(1, "cell"), counted(0, "cell")
    ('1 cell', '0 cells')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 1) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"]), some(["a", "b", "c"], 2), some(["a"])
    ('a and 2 more', 'a, b and 1 more', 'a')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

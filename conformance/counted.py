"""Says a number with its noun."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless it is one.

    >>> counted(1, "cell"), counted(0, "cell")
    ('1 cell', '0 cells')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"

"""Defines what a field of a record may hold beside its type: annotations that the decoder checks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from conformance.errors import RecordError


@runtime_checkable
class Limit(Protocol):
    """An annotation of a field's type."""

    def check(self, value: Any) -> None:
        """Refuse a value that the field must not hold.

        Raises:
            RecordError: the value is outside the limit; the message says what was wanted.
        """


@dataclass(frozen=True)
class OneOf:
    """A word of a table."""

    words: tuple[str, ...]

    def check(self, value: Any) -> None:
        """Refuse a word that is not in the table."""
        if value not in self.words:
            raise RecordError(f"want one of {', '.join(map(repr, self.words))}, got {_cut(value)}")


@dataclass(frozen=True)
class Matching:
    """A name of a plain form, which can stand in a table, in a message and in the name of a file."""

    pattern: str
    longest: int

    def check(self, value: Any) -> None:
        """Refuse a text of another form."""
        if len(value) > self.longest or not re.fullmatch(self.pattern, value, re.ASCII):
            raise RecordError(f"want a name of letters, digits and '_', got {_cut(value)}")


@dataclass(frozen=True)
class AboveZero:
    """A finite number above zero."""

    def check(self, value: Any) -> None:
        """Refuse zero, negative numbers, infinity and NaN."""
        if not (value > 0 and math.isfinite(value)):
            raise RecordError(f"want a finite number above 0, got {value}")


Name = Annotated[str, Matching(r"[\w.-]+(@\w+)?", 200)]


def _cut(value: Any) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"  # noqa: PLR2004 -- a display length

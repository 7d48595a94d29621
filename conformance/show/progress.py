"""How far a piece of work is, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MINUTE, HOUR = 60.0, 3600.0


@dataclass
class Progress:
    """Counts what is done and estimates what is left.

    The estimate of what is left is corrected by what the same kind of item took so far.

    Attributes:
        expected: the kind of each item and about how many seconds it will take, by name.
        at_once: number of items that are done at a time.
        red: number of items that are red.

    >>> work = Progress({"a": ("cell", 60.0), "b": ("cell", 60.0), "c": ("cell", 60.0)}, at_once=2)
    >>> work.done("a", seconds=120.0, red=True)
    >>> work.line()
    '1 of 3 done, 1 red, about 2 min left'
    """

    expected: Mapping[str, tuple[str, float]]
    at_once: int = 1
    red: int = 0
    _done: set[str] = field(default_factory=set)
    _took: dict[str, float] = field(default_factory=dict)

    def done(self, name: str, seconds: float, *, red: bool = False) -> None:
        """Count an item that is finished."""
        if name in self.expected and name not in self._done:
            self._done.add(name)
            kind, _ = self.expected[name]
            self._took[kind] = self._took.get(kind, 0.0) + seconds
            self.red += red

    def line(self) -> str:
        """Where the work stands, on one line."""
        parts = [f"{len(self._done)} of {len(self.expected)} done"]
        parts += [f"{self.red} red"] if self.red else []
        parts += [f"about {spoken(self.left)} left"] if len(self._done) < len(self.expected) else []
        return ", ".join(parts)

    @property
    def left(self) -> float:
        """About how many seconds the rest will take."""
        return sum(self._pace(kind) * seconds for kind, seconds in self._seconds(done=False).items()) / self.at_once

    def _pace(self, kind: str) -> float:
        """How many times longer than expected the items of a kind take; 1 before one is done."""
        expected = self._seconds(done=True).get(kind, 0.0)
        return self._took[kind] / expected if expected else 1.0

    def _seconds(self, *, done: bool) -> dict[str, float]:
        """The expected seconds of all items that are done or not, by kind."""
        found: dict[str, float] = {}
        for name, (kind, seconds) in self.expected.items():
            if (name in self._done) == done:
                found[kind] = found.get(kind, 0.0) + seconds
        return found


def spoken(seconds: float) -> str:
    """A time as people say it.

    >>> [spoken(seconds) for seconds in (0.4, 41.0, 200.0, 9000.0)]
    ['1 s', '41 s', '3 min', '2.5 h']
    """
    if seconds < MINUTE:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / MINUTE)} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"

"""How far a piece of work is, and how long the rest will take."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from conformance.one_line import counted

MINUTE, HOUR = 60.0, 3600.0


@dataclass
class Progress:
    """Counts what is done and estimates what is left.

    The estimate of what is left is corrected by what this run has shown: how long items of the same kind took, or else
    all items, and how much of its time passes in none of them, as on a machine that does other work too.

    Attributes:
        expected: the kind of each item and about how many seconds it will take, by name.
        what: the name of one item, such as "cell".
        at_once: number of items that are done at a time.
        red: number of items that are red.

    >>> work = Progress({"a": ("cell", 60.0), "b": ("cell", 60.0), "c": ("cell", 60.0)}, "cell", at_once=2)
    >>> work.done("a", seconds=120.0, red=True)
    >>> work.line()
    '1 of 3 cells done, 1 red, about 2 min left'
    >>> work.started("b", at=time.monotonic() - 180.0)
    >>> work.line()
    '1 of 3 cells done, 1 red, about 1 min left, b has taken 3 min so far'
    >>> work.started("c", at=time.monotonic() - 240.0)
    >>> work.line()
    '1 of 3 cells done, 1 red, longer than expected, c has taken 4 min so far'
    """

    expected: Mapping[str, tuple[str, float]]
    what: str
    at_once: int = 1
    red: int = 0
    _done: set[str] = field(default_factory=set)
    _since: dict[str, float] = field(default_factory=dict)
    _took: dict[str, float] = field(default_factory=dict)
    _began: float = math.inf

    def keep(self, names: Collection[str]) -> None:
        """Count these items alone."""
        self.expected = {name: known for name, known in self.expected.items() if name in names}

    def started(self, name: str, at: float) -> None:
        """Count an item as being worked on, from a time of `time.monotonic` on."""
        self._since[name] = at
        self._began = min(self._began, at)

    def done(self, name: str, seconds: float, *, red: bool = False) -> None:
        """Count an item that is finished."""
        if name in self.expected and name not in self._done:
            self._done.add(name)
            self._since.pop(name, None)
            kind, _ = self.expected[name]
            self._took[kind] = self._took.get(kind, 0.0) + seconds
            self.red += red

    def line(self) -> str:
        """Where the work stands, on one line."""
        parts = [f"{len(self._done)} of {counted(len(self.expected), self.what)} done"]
        parts += [f"{self.red} red"] if self.red else []
        if len(self._done) < len(self.expected):
            left = self.left
            parts.append(f"about {say_seconds(left)} left" if left else "longer than expected")
        taken, slowest = max(((seconds, name) for name, seconds in self._taken().items()), default=(0.0, ""))
        parts += [f"{slowest} has taken {say_seconds(taken)} so far"] if taken >= MINUTE else []
        return ", ".join(parts)

    @property
    def left(self) -> float:
        """About how many seconds the rest will take."""
        rest = sum(self._pace(kind) * seconds for kind, seconds in self._seconds(done=False).items())
        for name, taken in self._taken().items():
            kind, seconds = self.expected.get(name, ("", 0.0))
            rest -= min(taken, self._pace(kind) * seconds)
        return max(rest, 0.0) * self._drag() / self.at_once

    def _taken(self) -> dict[str, float]:
        """How many seconds the items that are being worked on have taken so far. Another thread may ask for it."""
        now = time.monotonic()
        return {name: now - since for name, since in self._since.copy().items()}

    def _pace(self, kind: str) -> float:
        """How many times longer than expected the items of a kind take, or all if none of them is done; at first 1."""
        expected = self._seconds(done=True)
        if expected.get(kind):
            return self._took[kind] / expected[kind]
        return sum(list(self._took.values())) / sum(expected.values()) if sum(expected.values()) else 1.0

    def _drag(self) -> float:
        """How many times longer the work takes than the items in it, as far as they are known."""
        busy = sum(list(self._took.values())) + sum(self._taken().values())
        passed = max(0.0, time.monotonic() - self._began) * self.at_once
        return max(1.0, passed / busy) if self._took and busy else 1.0

    def _seconds(self, *, done: bool) -> dict[str, float]:
        """The expected seconds of all items that are done or not, by kind."""
        found: dict[str, float] = {}
        for name, (kind, seconds) in self.expected.items():
            if (name in self._done) == done:
                found[kind] = found.get(kind, 0.0) + seconds
        return found


def say_seconds(seconds: float) -> str:
    """A time as people say it.

    >>> [say_seconds(seconds) for seconds in (0.4, 41.0, 200.0, 9000.0)]
    ['1 s', '41 s', '3 min', '2.5 h']
    """
    if seconds < MINUTE:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / MINUTE)} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"

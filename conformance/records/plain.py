"""Makes what was observed plain, whatever the model said: texts on one bounded line, facts that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.one_line import one_line
from conformance.records.observation import Discrepancy, Observation

MOST_VALUES, DEEPEST = 100, 6  # of all facts of a cell
LARGEST_INTEGER = 2**63


def observation(seen: Observation) -> Observation:
    """The observation with every text on one bounded line, and facts that a record can hold."""
    facts = _Plain().mapping(seen.facts, 0)
    found = tuple(map(_short, seen.discrepancies))
    return replace(seen, error=one_line(seen.error), message=one_line(seen.message), discrepancies=found, facts=facts)


def _short(d: Discrepancy) -> Discrepancy:
    measures = tuple(replace(m, detail=one_line(m.detail)) for m in d.measures)
    accepted, weak = tuple(map(one_line, d.accepted)), tuple(map(one_line, d.weak))
    case, tensor, dtype = map(one_line, (d.case, d.tensor, d.dtype))
    return replace(d, case=case, tensor=tensor, dtype=dtype, measures=measures, accepted=accepted, weak=weak)


class _Plain:
    """Makes values plain, at most so many."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """The mapping with plain values; those beyond the limit are left out."""
        return {one_line(key): self.value(value, depth) for key, value in values.items() if self._may_go_on()}

    def value(self, value: Any, depth: int) -> Any:
        """The value if JSON has it; otherwise its text."""
        kind = type(value)
        if value is None or kind is bool or (kind is int and abs(value) < LARGEST_INTEGER):
            return value
        if kind is float and math.isfinite(value):
            return value
        if depth < DEEPEST and kind is dict:
            return self.mapping(value, depth + 1)
        if depth < DEEPEST and kind in (list, tuple):
            return [self.value(item, depth + 1) for item in value if self._may_go_on()]
        return one_line(value)

    def _may_go_on(self) -> bool:
        self._left -= 1
        return self._left >= 0

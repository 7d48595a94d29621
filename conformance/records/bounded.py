"""Keeps records small and plain, whatever a model says: texts on one bounded line, facts as JSON, 200 kB for a cell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.one_line import one_line
from conformance.records.convert import to_json
from conformance.records.observation import Discrepancy, Observation
from conformance.records.verdicts import Verdict

LEFT_OUT = "tensors left out of the record"  # the fact that counts them
CELL_BYTES = 200_000  # of one verdict with its observation, in JSON
ROOM = 20_000  # of these, for what stands beside the tensors
TEXT_LENGTH = 2_000  # of the text of a verdict, which may hold several names
MOST_VALUES, DEEPEST = 100, 6  # of all facts of a cell
LARGEST_INTEGER = 2**63


def observation(seen: Observation) -> Observation:
    """The observation with every text on one bounded line, and facts that a record can hold."""
    facts = _Plain().mapping(seen.facts, 0)
    found = tuple(map(_short, seen.discrepancies))
    return replace(seen, error=one_line(seen.error), message=one_line(seen.message), discrepancies=found, facts=facts)


def verdict(judged: Verdict) -> Verdict:
    """The verdict, at most `CELL_BYTES` long in JSON.

    Of an observation that is longer, the tensors that are nearest to their budgets or over it stay; a fact counts the
    others. They were judged like all.
    """
    judged = replace(judged, text=judged.text[:TEXT_LENGTH])
    if _bytes(judged) <= CELL_BYTES:
        return judged
    seen = judged.observation
    ranked = sorted(seen.discrepancies, key=lambda d: -max((m.margin for m in d.measures), default=0.0))
    left = CELL_BYTES - ROOM - _bytes(replace(judged, observation=replace(seen, discrepancies=())))
    kept: set[int] = set()
    for discrepancy in ranked:
        left -= _bytes(discrepancy) + 2
        if left < 0:
            break
        kept.add(id(discrepancy))
    found = tuple(d for d in seen.discrepancies if id(d) in kept)
    facts = {**seen.facts, LEFT_OUT: len(seen.discrepancies) - len(found)}
    return replace(judged, observation=replace(seen, discrepancies=found, facts=facts))


def _bytes(record: Any) -> int:
    return len(json.dumps(to_json(record)))


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

"""Bounds what is stored of a cell: its verdict always stays; of a long record, what explains it least is left out.

A record that the store could not read again, because it is too deep for example, is shortened in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.errors import RecordError
from conformance.records.convert import to_json
from conformance.records.measurements import Reason, Result
from conformance.records.observation import RAISES, Discrepancy, Observation, Rest
from conformance.records.verdicts import Verdict
from conformance.store.records_file import DEEPEST, parse
from conformance.verdict import failed_gate

RECORD_BYTES = 200_000  # the longest verdict of a cell, as a line
RESULT_BYTES = 8 * 2**20  # the longest result of a measurement, as a line: a bench keeps the time of every call
TEXT = 2_000  # characters of each text in a record that is too long
LIST = 20  # items of each list of texts in such a record
_FRAME = 200  # bytes of a line beside its verdict


def bound(verdict: Verdict) -> Verdict:
    """The verdict itself, or one with the same status whose record is short enough; a note says what is left out.

    Args:
        verdict: a verdict of any size.
    """
    size = _size(verdict)
    if size <= RECORD_BYTES and _is_readable({"verdict": verdict}):
        return verdict
    seen = verdict.observation
    bare = replace(
        verdict,
        **{name: getattr(verdict, name)[:TEXT] for name in ("text", "short", "reason", "link")},
        notes=tuple(note[:TEXT] for note in verdict.notes[:LIST]),
        observation=Observation(seen.ending, seen.phase, seen.error[:TEXT], seen.message[:TEXT]),
    )
    facts = {name: value for name, value in seen.facts.items() if _size({name: value}) <= TEXT and _fits(name, value)}
    seconds = dict(list(seen.seconds.items())[:LIST])
    rest = seen.rest and replace(seen.rest, dtypes={})
    kept = replace(bare.observation, facts=dict(list(facts.items())[:LIST]), seconds=seconds, rest=rest)
    room = RECORD_BYTES - _size(replace(bare, observation=kept)) - 2 * TEXT
    discrepancies = _most_telling(seen.discrepancies, room)
    told = f"its record of {size} bytes was shortened: at most {RECORD_BYTES} are stored, and {DEEPEST} levels"
    if len(discrepancies) < len(seen.discrepancies):
        compared = len(seen.discrepancies) + (seen.rest.count if seen.rest else 0)
        told += f": of {compared} compared tensors, {len(discrepancies)} are kept, those that fail first"
    return replace(bare, notes=(*bare.notes, told), observation=replace(kept, discrepancies=discrepancies))


def bound_result(result: Result) -> Result:
    """The result itself, or the reason why it is not stored."""
    size = _size(result, Result)
    if size <= RESULT_BYTES:
        return result
    return Reason("record too long", f"{size} bytes; at most {RESULT_BYTES} are stored")


def _most_telling(found: tuple[Discrepancy, ...], room: int) -> tuple[Discrepancy, ...]:
    """As many as there is room for: those that fail first, then the others, both in their order."""
    kept = []
    for discrepancy in sorted(found, key=_is_met):
        room -= _size(discrepancy) + 1
        if room < 0:
            break
        kept.append(discrepancy)
    return tuple(kept)


def _is_met(found: Discrepancy) -> bool:
    dtype = not found.dtype_asked or found.dtype == found.dtype_asked
    return dtype and not found.accepted and all(measure.met for measure in found.measures)


def _fits(name: str, value: Any) -> bool:
    """Whether a record with that fact can be read again."""
    return _is_readable({"verdict": {"observation": {"facts": {name: value}}}})


def _is_readable(record: Mapping[str, Any]) -> bool:
    try:
        parse(_text(record).encode())
    except RecordError:
        return False
    return True


def _size(value: Any, hint: Any = None) -> int:
    """Bytes of a value as it is stored."""
    return len(_text(value, hint)) + _FRAME


def _text(value: Any, hint: Any = None) -> str:
    return json.dumps(to_json(value, hint), separators=(",", ":"))


# Condenses what is stored of a cell: tensors that every gate accepts, far from their budgets, are summed up.

NEAREST = 8  # tensors that are stored whole although nothing is to be said of them
NO_MARGIN = ("precision", RAISES)  # gates whose value over its budget is no measure of an error


def condense(verdict: Verdict) -> Verdict:
    """The verdict with those tensors alone of which something is to be said, and those nearest to their budgets.

    Args:
        verdict: a verdict whose observation has every tensor.
    """
    seen = verdict.observation
    quiet = sorted((d for d in seen.discrepancies if not _tells(d)), key=_margin, reverse=True)[NEAREST:]
    if not quiet:
        return verdict
    left_out = set(map(id, quiet))
    kept = tuple(d for d in seen.discrepancies if id(d) not in left_out)
    rest = _rest([d for d in seen.discrepancies if id(d) in left_out])
    return replace(verdict, observation=replace(seen, discrepancies=kept, rest=rest))


def _tells(found: Discrepancy) -> bool:
    """Whether a gate rejects it or a canary passes, or whether it is no comparison of a tensor."""
    rejected = failed_gate(found) is not None or not all(measure.met for measure in found.measures)
    remark = found.kind in ("conduct", "absent") or any(measure.gate == RAISES for measure in found.measures)
    return rejected or remark or bool(found.accepted)


def _margin(found: Discrepancy) -> float:
    return max((measure.margin for measure in found.measures if measure.gate not in NO_MARGIN), default=0.0)


def _rest(found: Sequence[Discrepancy]) -> Rest:
    margins: dict[str, float] = {}
    dtypes: dict[str, dict[str, tuple[str, ...]]] = {}
    for d in found:
        for measure in d.measures:
            margins[measure.gate] = max(measure.margin, margins.get(measure.gate, 0.0))
        same = dtypes.setdefault(d.case, {})
        same[d.dtype] = (*same.get(d.dtype, ()), str(d.tensor))
    return Rest(len(found), margins, dtypes, sum(bool(d.weak) for d in found), sum(bool(d.left_to) for d in found))

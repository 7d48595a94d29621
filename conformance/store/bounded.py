"""Bounds what is stored of a cell: all that matters of a tensor stays, and of the others their margins and dtypes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.records.cell import RAISES, Discrepancy, Rest, Verdict
from conformance.records.convert import to_json
from conformance.records.measurements import Reason, Result
from conformance.verdict import failed_gate

NEAREST = 8  # tensors that are stored whole although nothing is to be said of them
NO_MARGIN = ("precision", RAISES)  # gates whose value over its budget is no measure of an error
RECORD_BYTES = 200_000  # the longest verdict of a cell, as a line
RESULT_BYTES = 8 * 2**20  # the longest result of a measurement, as a line: a bench keeps the time of every call
FRAME_BYTES = 1_000  # of a line beside its verdict, and of the note that it was shortened


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


def _tells(tensor: Discrepancy) -> bool:
    """Whether a gate rejects it or a canary passes, or whether it is no comparison of a tensor."""
    remark = tensor.kind in ("conduct", "absent") or any(measure.gate == RAISES for measure in tensor.measures)
    return remark or not _is_met(tensor)


def _is_met(tensor: Discrepancy) -> bool:
    return failed_gate(tensor) is None and not tensor.accepted and all(measure.met for measure in tensor.measures)


def _margin(tensor: Discrepancy) -> float:
    return max((measure.margin for measure in tensor.measures if measure.gate not in NO_MARGIN), default=0.0)


def _rest(tensors: Sequence[Discrepancy]) -> Rest:
    margins: dict[str, float] = {}
    dtypes: dict[str, dict[str, tuple[str, ...]]] = {}
    for d in tensors:
        for measure in d.measures:
            margins[measure.gate] = max(measure.margin, margins.get(measure.gate, 0.0))
        same = dtypes.setdefault(d.case, {})
        same[d.dtype] = (*same.get(d.dtype, ()), str(d.tensor))
    weak, left = sum(bool(d.weak) for d in tensors), sum(bool(d.left_to) for d in tensors)
    return Rest(len(tensors), margins, dtypes, weak, left)


def bound(verdict: Verdict) -> Verdict:
    """The verdict itself, or one with the same status whose record is short enough; a note says what is left out.

    What a cell says of itself is bounded where it is observed. So only the number of tensors makes a record long: as
    many are kept as there is room for, first those that fail.
    """
    size = _size(verdict)
    if size <= RECORD_BYTES:
        return verdict
    seen = verdict.observation
    bare = replace(seen, discrepancies=(), rest=seen.rest and replace(seen.rest, dtypes={}))
    room = RECORD_BYTES - _size(replace(verdict, observation=bare))
    kept = []
    for discrepancy in sorted(seen.discrepancies, key=_is_met):
        room -= _size(discrepancy) - FRAME_BYTES + 1
        if room < 0:
            break
        kept.append(discrepancy)
    compared = len(seen.discrepancies) + (seen.rest.count if seen.rest else 0)
    note = (
        f"its record of {size} bytes was shortened, at most {RECORD_BYTES} are stored: of {compared} compared tensors, "
        f"{len(kept)} are kept, those that fail first"
    )
    return replace(verdict, notes=(*verdict.notes, note), observation=replace(bare, discrepancies=tuple(kept)))


def bound_result(result: Result) -> Result:
    """The result itself, or the reason why it is not stored."""
    size = _size(result, Result)
    if size <= RESULT_BYTES:
        return result
    return Reason("record too long", f"{size} bytes; at most {RESULT_BYTES} are stored")


def _size(value: Any, hint: Any = None) -> int:
    """Bytes of the line of a value."""
    return len(json.dumps(to_json(value, hint), separators=(",", ":"))) + FRAME_BYTES

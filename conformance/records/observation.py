"""What was seen in a cell, without opinion: measures, tensors, and how the cell ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.records.convert import Rounded


@dataclass(frozen=True)
class Measure:
    """One number and its budget. It is met if value ≤ budget, so a NaN never meets it.

    Attributes:
        gate: which gate measured it.
        value, budget: what was found and what is allowed.
        detail: what was found where; a report shows it in place of the numbers if `value` is infinite.
    """

    gate: str
    value: Rounded
    budget: Rounded
    detail: str = ""

    @property
    def met(self) -> bool:
        """Whether the value is within its budget."""
        return self.value <= self.budget

    @property
    def margin(self) -> float:
        """Value over budget: 0 is perfect, above 1 is red."""
        if self.met:
            return self.value / self.budget if self.budget else 0.0
        return self.value / self.budget if self.budget and not math.isnan(self.value) else math.inf


@dataclass(frozen=True)
class Discrepancy:
    """One tensor of one case, compared with the oracle's.

    Attributes:
        case, tensor: names; a tensor is "output", "gradient of x", "buffer running_mean" and so on.
        kind: "exact", "null", "empty", "absent", "float32" (held to float32 in a low cell) or "rounded".
        dtype, dtype_asked: found, and wanted by the contract ("" if the contract asks for none).
        measures: in the order of the gates.
        accepted: canaries that the gates failed to reject.
        weak: canaries that damage a part that rounding, or a flipped unit, leaves undefined.
        unresolved: a low precision cannot tell this tensor from a wrong one; float32's budgets can.
        closer: nearer to the oracle than eager at the same precision; None in eager cells.
    """

    case: str
    tensor: str
    kind: str
    dtype: str
    dtype_asked: str
    measures: tuple[Measure, ...]
    accepted: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    unresolved: bool = False
    closer: bool | None = None


@dataclass(frozen=True)
class Observation:
    """What was seen in a cell.

    Attributes:
        ending: "finished"; "raised" (error, message and phase say what); "not proven"; "no oracle",
            "invalid" and "random" (from the reference); "crashed", "timed out", "out of memory".
        phase: in which it ended: reference, import, build, prepare, call, second order, judge.
        error, message: type of the exception and one line of text.
        changed: inputs or parameters that forward changed and the spec does not declare.
        discrepancies: one for each tensor of each case.
        facts: proof of the mode and state of the compile cache.
        seconds: spent by phase; those of the reference are of the whole model.
    """

    ending: str
    phase: str = ""
    error: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()
    discrepancies: tuple[Discrepancy, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

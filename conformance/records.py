"""What is passed on and stored: cells, measures, observations, verdicts, speeds. Frozen, JSON both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.interval import Ratio


@dataclass(frozen=True)
class Cell:
    """One square of the matrix: model × mode × precision × device, all the model's cases inside."""

    model: str
    mode: str
    precision: str
    device: str

    @classmethod
    def of(cls, planned: Mapping[str, Any]) -> Cell:
        """The cell of a plan's entry."""
        return cls(planned["model"], planned["mode"], planned["precision"], planned["device"])

    @property
    def id(self) -> str:
        return f"{self.model}[{self.mode}-{self.precision}-{self.device}]"


@dataclass(frozen=True)
class Measure:
    """One number held against its budget; it is met when value ≤ budget, so never by a NaN.

    `detail` says what was found where; it replaces the numbers in a report when `value` is infinite.
    """

    gate: str
    value: float
    budget: float
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.budget

    @property
    def margin(self) -> float:
        """Value over budget: 0 is perfect, above 1 is red."""
        if self.met:
            return self.value / self.budget if self.budget else 0.0
        return self.value / self.budget if self.budget and not math.isnan(self.value) else math.inf


@dataclass(frozen=True)
class Discrepancy:
    """One tensor of one case against the oracle.

    Attributes:
        case, tensor: which; the tensor's name reads "output", "gradient of x", "buffer running_mean".
        kind: "exact", "null", "empty", "absent", "float32" (held to float32 in a low cell) or "rounded".
        dtype, dtype_asked: found, and wanted by the contract ("" where nothing is wanted).
        measures: in the order of the gates.
        accepted: canaries that the gates failed to reject.
        weak: canaries that damage a part too small for rounding, or a flipped unit, to leave it defined.
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

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Discrepancy:
        measures = tuple(Measure(m[0], float(m[1]), float(m[2]), m[3]) for m in data["measures"])
        lists = {key: tuple(data[key]) for key in ("accepted", "weak")}
        return cls(**{**data, "measures": measures, **lists})

    def to_json(self) -> dict[str, Any]:
        measures = [[m.gate, plain(m.value), plain(m.budget), m.detail] for m in self.measures]
        return {
            **vars(self),
            "measures": measures,
            "accepted": list(self.accepted),
            "weak": list(self.weak),
        }


@dataclass(frozen=True)
class Observation:
    """What was seen in a cell, without opinion.

    Attributes:
        ending: "finished"; "raised" (error, message and phase say what); "not proven"; "no oracle",
            "invalid" and "random" (from the reference); "crashed", "timed out", "out of memory".
        phase: where it ended: reference, import, build, prepare, call, second order, judge.
        error, message: exception type and one line of text.
        changed: inputs or parameters that forward altered without saying so.
        discrepancies: one for each tensor of each case.
        facts: proof of the mode and state of the compile cache.
        seconds: spent by phase; the reference's are those of the whole model.
    """

    ending: str
    phase: str = ""
    error: str = ""
    message: str = ""
    changed: tuple[str, ...] = ()
    discrepancies: tuple[Discrepancy, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        found = tuple(Discrepancy.from_json(d) for d in data.get("discrepancies", ()))
        return cls(**{**data, "changed": tuple(data.get("changed", ())), "discrepancies": found})

    def to_json(self) -> dict[str, Any]:
        data = {key: value for key, value in vars(self).items() if value or key == "ending"}
        if self.discrepancies:
            data["discrepancies"] = [d.to_json() for d in self.discrepancies]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


@dataclass(frozen=True)
class Status:
    """A verdict's word: its glyph in the table, whether it is red, and what it means."""

    glyph: str
    red: bool
    meaning: str


STATUSES = {
    "PASS": Status("✓", False, "every gate held, mode proven"),
    "EXPECTED": Status("≠", False, "a declared divergence happened exactly as declared"),
    "UNSUPPORTED": Status("–", False, "the spec says the mode cannot take this model, and it refused"),
    "FAIL": Status("✗", True, "a gate said no"),
    "STALE": Status("✗", True, "a declared divergence or refusal no longer happens"),
    "ERROR": Status("✗", True, "the mode or the model raised"),
    "CRASH": Status("✗", True, "the process died"),
    "TIMEOUT": Status("✗", True, "the process passed its deadline"),
    "OOM": Status("✗", True, "memory was refused"),
    "VOID": Status("✗", True, "it finished, but did not do what the cell says"),
    "UNSTABLE": Status("✗", True, "two identical calls differ"),
    "INCONCLUSIVE": Status("?", True, "the gates have no power here, or no oracle exists"),
    "INVALID": Status("✗", True, "the spec itself is wrong; the model was not judged"),
    "SKIPPED": Status("·", False, "the device is absent and was not asked for by name"),
    "NOTRUN": Status("·", True, "planned and never finished; the run is incomplete"),
}


@dataclass(frozen=True)
class Verdict:
    """What the judge says of a cell.

    Attributes:
        cell: its id.
        status: a key of `STATUSES`.
        text: one line: what, where, found, allowed.
        margin: the worst value over its budget; None where nothing was measured.
        short: what the table shows beside the glyph.
        reason, link: of the expectation that applied.
        notes: true of a green cell and worth knowing.
        seconds: wall time of the cell, its process included.
        observation: what the verdict rests on.
    """

    cell: str
    status: str
    text: str = ""
    margin: float | None = None
    short: str = ""
    reason: str = ""
    link: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    observation: Observation = field(default_factory=lambda: Observation("none"))

    @property
    def red(self) -> bool:
        return STATUSES[self.status].red

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        margin = None if data["margin"] is None else float(data["margin"])
        seen = Observation.from_json(data["observation"])
        return cls(**{**data, "margin": margin, "notes": tuple(data["notes"]), "observation": seen})

    def to_json(self) -> dict[str, Any]:
        margin = None if self.margin is None else plain(self.margin)
        return {
            **vars(self),
            "margin": margin,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "observation": self.observation.to_json(),
        }


@dataclass(frozen=True)
class Speed:
    """What is known of one cell's speed.

    Attributes:
        cell: its id.
        figure: what was timed: "forward", "gradient" (forward and backward), "step" or "fit".
        seconds: of one call, the median; None where there is no figure.
        ratios: how many times faster than each baseline, by its cell's id.
        warm_calls: calls until the time was steady, the most of any process.
        reason: why there is no figure.
    """

    cell: str
    figure: str = ""
    seconds: float | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    warm_calls: int = 0
    reason: str = ""


def plain(number: float) -> float | str:
    """A float as JSON knows it: four significant digits, infinities and NaN as text."""
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)

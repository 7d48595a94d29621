"""Verdicts: the table of statuses, and the record of one cell's verdict."""

from dataclasses import dataclass, field
from typing import Annotated

from conformance.records.convert import Rounded, one_of
from conformance.records.observation import Observation


@dataclass(frozen=True)
class Status:
    """The status of a verdict: its sign in the table, whether it is red, and its meaning."""

    glyph: str
    red: bool
    meaning: str


STATUSES = {
    "PASS": Status("✓", False, "every gate held, and the mode is proven"),
    "EXPECTED": Status("≠", False, "a declared divergence happened exactly as declared"),
    "UNSUPPORTED": Status(
        "–", False, "the spec declares that the mode cannot take this model, and it raised that error"
    ),
    "FAIL": Status("✗", True, "a gate rejects a tensor"),
    "STALE": Status("✗", True, "a declared divergence no longer happens"),
    "ERROR": Status("✗", True, "the mode or the model raised an exception"),
    "CRASH": Status("✗", True, "the process died"),
    "TIMEOUT": Status("✗", True, "the process passed its deadline"),
    "OOM": Status("✗", True, "the process ran out of memory"),
    "VOID": Status("✗", True, "it finished, but not in the mode, precision or device of the cell"),
    "UNSTABLE": Status("✗", True, "two identical calls differ"),
    "INCONCLUSIVE": Status("?", True, "the checks could not have caught a wrong result, or there is no oracle"),
    "INVALID": Status("✗", True, "the spec itself is wrong; the model was not judged"),
    "SKIPPED": Status("·", False, "the device is absent, and nobody asked for it by name"),
    "NOTRUN": Status("·", True, "the cell is planned and has no verdict; the run is incomplete"),
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one cell.

    Attributes:
        cell: id of the cell.
        status: a key of `STATUSES`.
        text: one line: the gate, the tensor, the error and its budget, or another reason.
        margin: the worst value over its budget; None if nothing was measured.
        short: the text that the table shows next to the sign.
        reason, link: reason and link of the declared divergence that applied.
        notes: remarks that a report shows unless the cell is red.
        seconds: wall time of the cell, its process included.
    """

    cell: str
    status: Annotated[str, one_of(STATUSES)]
    text: str = ""
    margin: Rounded | None = None
    short: str = ""
    reason: str = ""
    link: str = ""
    notes: tuple[str, ...] = ()
    seconds: Rounded = 0.0
    observation: Observation = field(default_factory=lambda: Observation("none"))

    @property
    def red(self) -> bool:
        """Whether the cell fails the run."""
        return STATUSES[self.status].red

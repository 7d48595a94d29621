"""A declared divergence: a known deviation from the contract in some cells, with its reason. Without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from zoo.errors import SpecError

OUTCOMES = ("dtype", "refuses", "FAIL", "UNSTABLE", "VOID", "INVALID", "INCONCLUSIVE", "ERROR")
ENDINGS = ("CRASH", "TIMEOUT", "OOM")
AXES = ("modes", "precisions", "devices")


def check_names(where: str, names: Any) -> None:
    """Raise an error unless `names` is a tuple of strings.

    Args:
        where: the field, for the message.
        names: the value to check.

    Raises:
        TypeError: `where` is not a str.
        SpecError: `names` is something else; the message starts with `where`.

    >>> check_names("modes", "eager")
    Traceback (most recent call last):
    zoo.errors.SpecError: modes must be a tuple of names, got 'eager'
    """
    if not isinstance(where, str):
        raise TypeError(f"check_names: where must be a str, got {type(where).__name__}")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{where} must be a tuple of names, got {names!r}")


@dataclass(frozen=True, kw_only=True)
class Expect:
    """A declared divergence: the cells and torch versions concerned, the exact outcome, its reason and a link.

    Attributes:
        outcome: `"dtype"`: the output named by `tensor` has dtype `dtype` instead of the declared one, and
            every other gate passes. `"refuses"`: building or calling the mode raises `error` with a
            message that `match` finds. Any other word: the cell must get the red verdict of that name. If several
            tensors or gates fail, each failure must be declared; several of these with "FAIL" may cover a cell.
        reason: one sentence that a reader can check.
        link: address of the documentation or report of the behaviour.
        modes, precisions, devices: the cells concerned; an empty tuple means all.
        torch: version range in the form of PEP 440, such as ">=2.6,<2.15"; empty means all.
        tensor, dtype: for "dtype" and "FAIL": a tensor name as the report prints it, such as "output", and
            the name of a dtype.
        error, match: for "refuses" and "ERROR": the exception's type name and a regular expression.
        gate, case: for "FAIL": the gate that must fail, and the name of the case in which it must, also if the case
            runs again with other weights; or the gate "raises", the tensor "output" and the name of an error input.
        probe: the name of a probe of the zoo, for a divergence that hangs on the processor, a library or the device. It
            is declared where the probe shows its fault on the machine of the run; elsewhere the cell must pass.

    >>> known = Expect(outcome="VOID", modes=("compiled",), torch=">=2.6", reason="falls back to eager")
    >>> known.concerns("compiled", "fp32", "cpu", "2.13.0"), known.concerns("compiled", "fp32", "cpu", "2.4.1")
    (True, False)
    """

    outcome: str
    reason: str
    link: str = ""
    modes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    torch: str = ""
    tensor: str = ""
    dtype: str = ""
    error: str = ""
    match: str = ""
    gate: str = ""
    case: str = ""
    probe: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES + ENDINGS:
            raise SpecError(f"expectation: outcome {self.outcome!r}: want one of {', '.join(OUTCOMES + ENDINGS)}")
        for name in (field.name for field in fields(self) if field.name not in AXES):
            if not isinstance(getattr(self, name), str):
                raise SpecError(f"expectation of {self.outcome!r}: {name} must be a text, got {getattr(self, name)!r}")
        if not self.reason:
            raise SpecError(f"an expectation of {self.outcome!r} needs a reason")
        for axis in AXES:
            check_names(f"expectation {self.reason!r}: {axis}", getattr(self, axis))
        if self.outcome == "dtype" and not (self.tensor and self.dtype):
            raise SpecError(
                f"an expectation of 'dtype' needs tensor and a dtype's name, got {self.tensor!r} and {self.dtype!r}"
            )
        if self.outcome in ("refuses", "ERROR") and not (self.error and self.match):
            raise SpecError(f"an expectation of {self.outcome!r} needs error and match")
        try:
            SpecifierSet(self.torch)
            re.compile(self.match)
        except (InvalidSpecifier, re.error, OverflowError) as problem:  # the last: of a{10000000000}
            raise SpecError(f"expectation {self.reason!r}: {problem}") from problem

    def concerns(self, mode: str, precision: str, device: str, torch_version: str) -> bool:
        """Return whether this expectation applies to a cell on a torch version.

        Args:
            mode: the cell's mode, such as "eager".
            precision: the cell's precision, such as "amp_bf16".
            device: the cell's device type, such as "cpu".
            torch_version: a version such as "2.13.0+cpu"; the part from the plus sign on is ignored.
        """
        return (
            (not self.modes or mode in self.modes)
            and (not self.precisions or precision in self.precisions)
            and (not self.devices or device in self.devices)
            and SpecifierSet(self.torch).contains(torch_version.split("+", maxsplit=1)[0], prereleases=True)
        )

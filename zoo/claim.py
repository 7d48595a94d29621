"""What a source says a technique gains, so that it can be measured again."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.case import SpecError

QUANTITIES = ("forward", "gradient", "step", "fit", "saved", "peak")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published gain of a model, or of a mode or precision of it, over a baseline.

    Attributes:
        text: what is claimed, in one line.
        source: who says so, and on which machine, where that is known.
        factor: how many times faster, or how many times less memory.
        quantity: "forward", "gradient" (forward and backward), "step" (a training step), "fit" (a spec's whole
            training), or bytes: "saved" for backward, "peak" of forward and backward.
        baseline: name of the model compared with; "" for this one.
        sizes: at which to measure both, on this spec's scale; empty for all of the scale.
        mode, precision: in which the gain shows.
        baseline_mode, baseline_precision: those of the baseline.
        device: "cuda" for a claim that nothing else can test; "" for one to be tested on each device that is there.

    >>> Claim(text="two times faster", source="a post", factor=2.0, quantity="forward", baseline="merge").device
    ''
    """

    text: str
    source: str
    factor: float
    quantity: str
    baseline: str = ""
    sizes: tuple[int, ...] = ()
    mode: str = "eager"
    precision: str = "fp32"
    baseline_mode: str = "eager"
    baseline_precision: str = "fp32"
    device: str = ""

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            known = ", ".join(QUANTITIES)
            raise SpecError(f"claim {self.text!r}: quantity must be one of {known}, got {self.quantity!r}")
        if not self.factor > 1:
            raise SpecError(f"claim {self.text!r}: factor must be above 1, got {self.factor}")
        if not self.baseline and (self.mode, self.precision) == (self.baseline_mode, self.baseline_precision):
            raise SpecError(f"claim {self.text!r}: it compares a model with itself")

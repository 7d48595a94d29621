"""A published gain of a technique, recorded so that it can be measured again."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.case import SpecError

QUANTITIES = ("forward", "gradient", "step", "fit", "saved", "peak")
WORDS = ("quantity", "baseline", "mode", "precision", "baseline_mode", "baseline_precision", "device")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published gain of a model, or of a mode or precision of it, over a baseline.

    Attributes:
        text: the claim in one line.
        source: the publication, and its machine if it names one.
        factor: how many times faster, or how many times less memory; above 1.
        quantity: a time: "forward", "gradient" (forward and backward), "step" (a training step) or "fit" (a whole
            training, as its source runs it); or a number of bytes: "saved" (for backward) or "peak" (of forward and
            backward).
        baseline: name of the model to compare with; "" means this model.
        sizes: the sizes of this spec's scale, or of a whole training, at which both are measured; empty means all of
            the scale.
        mode, precision: the mode and precision that show the gain.
        baseline_mode, baseline_precision: the mode and precision of the baseline.
        device: "cuda" for a claim that only CUDA can test; "" for a claim to test on each available device.

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
        for name in ("text", "source", *WORDS):
            value = getattr(self, name)
            if not isinstance(value, str) or not (value or name in ("baseline", "device")):
                raise SpecError(f"claim {self.text!r}: {name} must be a text, got {value!r}")
        if self.quantity not in QUANTITIES:
            known = ", ".join(QUANTITIES)
            raise SpecError(f"claim {self.text!r}: quantity must be one of {known}, got {self.quantity!r}")
        if not isinstance(self.factor, (int, float)) or not self.factor > 1:
            raise SpecError(f"claim {self.text!r}: factor must be a number above 1, got {self.factor!r}")
        if not isinstance(self.sizes, tuple) or not all(isinstance(n, int) and n > 0 for n in self.sizes):
            raise SpecError(f"claim {self.text!r}: sizes must be a tuple of positive numbers, got {self.sizes!r}")
        if not self.baseline and (self.mode, self.precision) == (self.baseline_mode, self.baseline_precision):
            raise SpecError(f"claim {self.text!r}: it compares a model with itself")

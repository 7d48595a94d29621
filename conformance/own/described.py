"""Reads inputs that a person describes in words, such as "2,3,64,64" or "mask=2,16:bool", and draws them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from conformance.errors import UsageError
from zoo.case import Call

FORM = re.compile(
    r"((?P<name>[A-Za-z_]\w*)=)?(?P<shape>(\d+(,\d+)*)?)"
    r"(:(?P<dtype>\w+)(:(?P<low>-?[\d.]+(e-?\d+)?)\.\.(?P<high>-?[\d.]+(e-?\d+)?))?)?"
)
WANTED = "want [NAME=]SHAPE[:DTYPE[:LOW..HIGH]], such as 2,3,64,64 or 2,16:int64:0..1000"


@dataclass(frozen=True)
class Description:
    """One input in words.

    Attributes:
        name: name of the keyword; "" for a positional input.
        shape: its shape; () for a single number.
        dtype: its dtype.
        limits: the smallest value, and the one below which all are; None for a standard normal distribution.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    limits: tuple[float, float] | None

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Draw the input, a tensor on the CPU."""
        if self.dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5  # noqa: PLR2004 -- both values are as frequent
        if self.limits is None:
            return torch.randn(self.shape, generator=generator, dtype=self.dtype)
        low, high = self.limits
        if self.dtype.is_floating_point:
            return low + (high - low) * torch.rand(self.shape, generator=generator, dtype=self.dtype)
        return torch.randint(int(low), int(high), self.shape, generator=generator, dtype=self.dtype)


def read(texts: Sequence[str]) -> tuple[Description, ...]:
    """The inputs that texts describe, in order.

    Raises:
        UsageError: a text describes none; the message says which.
    """
    return tuple(_one(text) for text in texts)


def draw(descriptions: Sequence[Description], generator: torch.Generator) -> Call:
    """The arguments of one call."""
    drawn = [(one.name, one.draw(generator)) for one in descriptions]
    return Call(tuple(t for name, t in drawn if not name), {name: t for name, t in drawn if name})


def _one(text: str) -> Description:
    found = FORM.fullmatch(text)
    if found is None or not (found["shape"] or found["dtype"]):
        raise UsageError(f"--input {text}: {WANTED}")
    dtype = getattr(torch, found["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {text}: torch has no dtype {found['dtype']!r}")
    limits = (_number(text, found["low"]), _number(text, found["high"])) if found["low"] else None
    if limits and not (limits[0] < limits[1] and not dtype.is_complex and dtype != torch.bool):
        raise UsageError(f"--input {text}: LOW must be below HIGH, and bool and complex numbers have no limits")
    if limits is None and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise UsageError(f"--input {text}: whole numbers need limits, such as {text}:0..10, which gives 0 to 9")
    shape = tuple(int(axis) for axis in found["shape"].split(",")) if found["shape"] else ()
    return Description(found["name"] or "", shape, dtype, limits)


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"--input {text}: {number} is no number")
    return value

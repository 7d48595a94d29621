"""Makes a case of the arguments of one call: they are its first draw, and further draws are made from them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.evaluate import inputs
from zoo.case import Call, Case

NAME = "given"
FEW = 8  # distinct values: a mask, or the codes of classes


def case_of(call: Call) -> Case:
    """The case whose first draw is this call."""
    return Case(name=NAME, inputs=lambda generator: like(call, generator), first=call)


def like(call: Call, generator: torch.Generator) -> Call:
    """Other arguments like these.

    Floating numbers are drawn from the distribution of the given ones, so they lie between the same limits. All other
    values stay, and so does a floating tensor that holds few distinct values, or one that is not finite.

    Args:
        call: the given arguments.
        generator: the source of all random numbers.
    """
    return inputs.place(call, convert=_drawing(generator))


def _drawing(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    def drawn(values: torch.Tensor) -> torch.Tensor:
        if values.is_complex():
            return torch.view_as_complex(drawn(torch.view_as_real(values).flatten()).view(-1, 2))
        if not values.is_floating_point() or values.numel() < 2 or not bool(values.isfinite().all()):  # noqa: PLR2004
            return values
        known = values.double().sort().values
        distinct = int(known.unique_consecutive().numel())
        if distinct <= FEW and distinct < known.numel():
            return values
        place = torch.rand(known.numel(), generator=generator, dtype=torch.float64) * (known.numel() - 1)
        below = place.long().clamp(max=known.numel() - 2)
        return torch.lerp(known[below], known[below + 1], place - below).to(values.dtype)

    return drawn

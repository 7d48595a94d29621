"""The shapes in which the inputs of a model may come: sizes between bounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zoo.case import NAME, Call, Case, SpecError


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of shapes. A run draws some of them: `conformance run --shapes 4`.

    Attributes:
        sizes: the smallest and the largest value of each size by its name, at least 1, such as {"rows": (1, 9)}.
            The model must take all that lies between. What depends on a size, `inputs` computes from it.
        inputs: draws the inputs of a shape, called as inputs(*sizes, generator): a tuple of arguments or a `Call`,
            tensors on the CPU.

    >>> family = Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda m, n, g: (torch.randn(m, n, generator=g),))
    >>> family.case({"rows": 2, "n": 3}).draw(torch.Generator()).args[0].shape
    torch.Size([2, 3])
    """

    sizes: Mapping[str, tuple[int, int]]
    inputs: Callable[..., tuple[Any, ...] | Call]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or not self.sizes:
            raise SpecError(f"family: sizes must map names to bounds, got {self.sizes!r}")
        for name, bounds in self.sizes.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise SpecError(f"family: size {name!r}: want lower-case letters, digits and '_'")
            pair = bounds if isinstance(bounds, tuple) and [type(bound) for bound in bounds] == [int, int] else (1, 0)
            if not 1 <= pair[0] <= pair[1]:
                raise SpecError(f"family: {name} must lie between two whole numbers from 1, got {bounds!r}")
        if not callable(self.inputs):
            raise SpecError(f"family: inputs must be callable, got {self.inputs!r}")

    def draw(self, number: int, seed: int) -> list[dict[str, int]]:
        """Draw different shapes, the same on every machine: so many, or all if there are fewer.

        The first has the smallest sizes, the second odd ones above these, as far as the bounds allow. Fewer shapes of
        a seed are the first of more.

        >>> MATRICES.draw(3, seed=0)[0]
        {'rows': 1, 'n': 1}
        """
        found = [{name: low for name, (low, _) in self.sizes.items()}]
        spans = {name: range(low, high + 1) for name, (low, high) in self.sizes.items()}
        odd = {name: range((low + 1) | 1, high + 1, 2) or spans[name] for name, (low, high) in self.sizes.items()}
        chance = random.Random(seed)  # noqa: S311 -- nobody guesses it
        while len(found) < min(number, math.prod(map(len, spans.values()))):
            sizes = {name: chance.choice(span) for name, span in (odd if len(found) == 1 else spans).items()}
            if sizes not in found:
                found.append(sizes)
        return found

    def case(self, sizes: Mapping[str, int], *, independent_samples: bool = False) -> Case:
        """Return the case of a shape.

        Raises:
            SpecError: these are not the sizes of the family, in their order, or one is out of its bounds.
        """
        if [*sizes] != [*self.sizes]:
            raise SpecError(f"want the sizes {', '.join(self.sizes)}, got {', '.join(sizes)}")
        for name, (low, high) in self.sizes.items():
            if not low <= sizes[name] <= high:
                raise SpecError(f"{name} must be from {low} to {high}, got {sizes[name]}")
        return Case(
            name="drawn",
            inputs=lambda generator: self.inputs(*sizes.values(), generator),
            independent_samples=independent_samples,
        )


MATRICES = Family(
    sizes={"rows": (1, 9), "n": (1, 17)},  # beyond the 8 and 16 numbers that a processor adds at once
    inputs=lambda rows, n, g: (torch.randn(rows, n, generator=g),),
)
"""The family of a function of a matrix (rows, n) of float32 numbers from N(0, 1)."""

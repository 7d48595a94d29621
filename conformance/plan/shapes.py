"""Draws shapes of a model's family."""

import math
import random

from conformance.seeds import seed_of
from zoo import Spec


def draw(spec: Spec, number: int, seed: int) -> list[dict[str, int]]:
    """Different shapes of a family, at most as many as it has; none if the spec has no family.

    The first has the smallest sizes, the second odd ones above these, as far as the bounds allow. They are the same on
    every machine, and the first of more.
    """
    if spec.family is None:
        return []
    bounds = spec.family.sizes
    found = [{name: low for name, (low, _) in bounds.items()}]
    chance = random.Random(seed_of(seed, spec.name, "shapes"))  # noqa: S311 -- nobody guesses it
    while len(found) < min(number, math.prod(high - low + 1 for low, high in bounds.values())):
        spans = {name: range(low, high + 1) for name, (low, high) in bounds.items()}
        odd = {name: range((low + 1) | 1, high + 1, 2) or spans[name] for name, (low, high) in bounds.items()}
        sizes = {name: chance.choice(span) for name, span in (odd if len(found) == 1 else spans).items()}
        if sizes not in found:
            found.append(sizes)
    return found

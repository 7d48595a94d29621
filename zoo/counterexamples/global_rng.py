"""y = x m / k with a random mask m that keeps a fraction k: dropout that draws from the global generator.

The same input gives another output in every call. A scripted or compiled copy gives yet another output, because it
draws in another order. The remedy is an argument: a mask, or a `torch.Generator` that draws it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

KEEP = 0.5


def global_rng(x: Tensor) -> Tensor:
    """Apply handwritten dropout.

    Args:
        x: any shape, floating.

    Returns:
        A tensor with the shape and dtype of `x`; the global generator decides whether an element is 0 or doubled.

    >>> x = torch.ones(64)
    >>> torch.equal(global_rng(x), global_rng(x))
    False
    """
    mask = torch.rand_like(x) < KEEP
    return x * mask / KEEP


SPEC = Spec(
    name="global_rng",
    summary="dropout from the global generator: calls differ",
    source="dropout written by hand",
    formula="y = x m / k, m = 1 with probability k",
    shapes="(...) → (...)",
    build=lambda: global_rng,
    cases=(Case(name="typical", inputs=lambda g: (1 + torch.rand(8, 8, generator=g),)),),
    dtypes="input",
    expectations=(
        Expect(
            outcome="UNSTABLE",
            match="^output: two identical float64 runs differ",
            reason="the mask comes from torch's global generator, which no argument fixes",
        ),
    ),
)

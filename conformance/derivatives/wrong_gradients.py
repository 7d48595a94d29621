"""Says which gradients are wrong, what the first one looks like, and what to declare if it is by design."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conformance.derivatives.slopes import Mismatch

UNCHANGED = 1e-6  # a slope below this is that of a constant
STOPS = "stops_gradients=True: forward calls detach, or computes under no_grad"


def told(wrong: Sequence[Mismatch], way: str) -> str:
    """The sentence.

    Args:
        wrong: the gradients; at least one.
        way: what to declare; "" if it depends on what it looks like.
    """
    first = wrong[0]
    low, high = (f"{value:.6g}" for value in first.numeric)
    numeric = low if low == high else f"{low} to {high}"
    others = f"; also wrong: the gradient of {', '.join(m.tensor for m in wrong[1:])}" if len(wrong) > 1 else ""
    found = f"Jacobian mismatch: gradient of {first.tensor} at {first.index} is {first.analytic:.6g}"
    if not math.isfinite(first.analytic):
        return f"{found}{others}; draw inputs away from the edge of their domain"
    if max(abs(value) for value in first.numeric) < UNCHANGED:
        guess, part = "the outputs do not change with it: a straight-through estimator?", ""
    elif not first.analytic:
        guess, part = "the outputs change with it: a detached path, or padding?", "rows=…, zero=True, "
    else:
        guess, part = "a wrong backward?", ""
    way = way or f'surrogate_gradient or Convention(tensor="{first.tensor}", {part}why=…)'
    return f"{found}, finite differences give {numeric}{others}; {guess} If it is by design, declare {way}"

"""sum(a + b) of a column and a row instead of two columns: 12 instead of 6.

Source: "Effective PyTorch", on broadcasting. (n, 1) + (n,) is not an error but an (n, n) matrix of all pairs, and
the sum hides its shape. `zoo.ops.broadcasting` raises an error for different ranks. A comparison with any formula
that names the axes shows the fault.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec


def sum_over_broadcast(a: Tensor, b: Tensor) -> Tensor:
    """Sum over all pairs of elements, instead of over all elements.

    Args:
        a: (n, 1), floating.
        b: (n,), dtype of `a`.

    Returns:
        A scalar, n times the sum of all elements.

    >>> sum_over_broadcast(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]))
    tensor(12.)
    """
    return (a + b).sum()


def _reference(_model: object, a: Tensor, b: Tensor) -> Tensor:
    return a.sum() + b.sum()


SPEC = Spec(
    name="sum_over_broadcast",
    summary="sum over an unintended broadcast: 12 instead of 6",
    source="Effective PyTorch, broadcasting",
    formula="y = sum_i (a_i + b_i)",
    shapes="(n, 1), (n,) → ()",
    build=lambda: sum_over_broadcast,
    cases=(Case(name="twelve", inputs=lambda _: (torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]))),),
    dtypes="input",
    reference=_reference,
    expectations=(
        Expect(
            outcome="INVALID",
            match="^output: the float64 oracle differs from the spec's reference;",
            reason="(2, 1) + (2,) broadcasts to (2, 2): four pairs add up to 12, the elements to 6",
            link="https://docs.pytorch.org/docs/stable/notes/broadcasting.html",
        ),
    ),
)

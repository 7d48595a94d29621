"""Tells whether an op computes with small whole numbers, which every precision represents: then it rounds nothing."""

from __future__ import annotations

from typing import Any

import torch

from conformance.evaluate.custom_ops import Unwatched
from conformance.evaluate.inputs import is_rounded
from conformance.evaluate.nested import leaves_of

LARGEST = 256  # bfloat16 represents every whole number up to here
ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "square", "floor_divide", "fmod", "remainder"})
SUMS = frozenset(
    """
    addmm addmv baddbmm bmm cumsum dot index_add index_put mm mv nansum scatter_add sum
    """.split()
)


def may_count(name: str) -> bool:
    """Whether an op gives whole numbers for whole numbers."""
    return name in ELEMENTWISE or name in SUMS


def counts(numbers: Any, name: str) -> bool:
    """Whether all floating numbers in a container are small whole numbers, so that an op on them rounds nothing.

    Partial sums of numbers of both signs may be larger than the sum. So a sum counts if no operand is negative.

    Args:
        numbers: the operands or the results of the op.
        name: name of the op; it is one that `may_count`.
    """
    with Unwatched():
        for leaf in leaves_of(numbers):
            if isinstance(leaf, float) and not leaf.is_integer():
                return False
            if is_rounded(leaf) and not _whole(leaf.detach(), signed=name in ELEMENTWISE):
                return False
    return True


def _whole(tensor: torch.Tensor, *, signed: bool) -> bool:
    if tensor.is_complex():
        return False
    if not tensor.numel():
        return True
    first = tensor[(0,) * tensor.dim()].item()  # most tensors are told by one element
    if first != first // 1 or not abs(first) <= LARGEST:
        return False
    low, high = tensor.aminmax()
    least = -LARGEST if signed else 0
    return least <= float(low) and float(high) <= LARGEST and bool((tensor == tensor.trunc()).all())

"""What one tensor of one cell is held to: its kind and its budget, fixed before the candidate is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from conformance.axes import Precision
from conformance.gates.budget import FLOAT32, Budget, TensorReference, budget_for, holds_float32, measures


@dataclass(frozen=True)
class TensorCriteria:
    """What one tensor of one cell is held to.

    Attributes:
        case, tensor: names.
        reference: what is known of the tensor.
        kind: see `Discrepancy.kind`.
        precision: whose budget holds; float32's if eager reaches it in a low cell.
        cell_precision: the cell's own.
        budget: at that precision.
        dtype: asked by the contract, "" if the contract asks for none.
        baseline: eager at the same precision; None in eager cells.
        bitwise: identical calls must agree bit for bit.
    """

    case: str
    tensor: str
    reference: TensorReference
    kind: str
    precision: Precision
    cell_precision: Precision
    budget: Budget
    dtype: str
    baseline: torch.Tensor | None
    bitwise: bool

    @property
    def is_fine(self) -> bool:
        """Whether float32's budget holds."""
        return self.precision.name == FLOAT32.name

    def at_float32(self) -> TensorCriteria:
        """The same with float32's budget."""
        return replace(self, precision=FLOAT32, budget=budget_for(self.reference, FLOAT32))


def criteria_for(  # noqa: PLR0913 -- a record's fields
    case: str,
    tensor: str,
    reference: TensorReference,
    precision: Precision,
    *,
    dtype: str,
    baseline: torch.Tensor | None,
    accurate: bool,
    bitwise: bool,
) -> TensorCriteria:
    """Choose the kind and the budget of a tensor.

    Args:
        case: its name.
        tensor: its name.
        reference: what is known of the tensor.
        precision: the cell's.
        dtype: asked by the contract, or "".
        baseline: eager's tensor at the same precision; None in eager cells.
        accurate: the spec asks for float32's precision in every cell.
        bitwise: identical calls must agree bit for bit.
    """
    oracle = reference.oracle
    usable = baseline if baseline is not None and baseline.shape == oracle.shape else None
    beside = oracle.distance(usable) if usable is not None else None
    held_to = precision
    if not oracle.reals.numel():
        kind = "empty"
    elif reference.exact or not oracle.is_rounded:
        kind = "exact"
    elif reference.is_null:
        kind, held_to = "null", FLOAT32 if accurate else precision
    else:
        low = bool(precision.autocast)  # a kernel chooses by itself whether it takes TF32, and nothing else follows
        reaches = accurate or (low and beside is not None and holds_float32(beside, reference, precision))
        kind, held_to = ("float32", FLOAT32) if low and reaches else ("rounded", precision)
    budget = Budget(0.0, (), 0.0, 0.0)
    if kind not in ("empty", "exact"):
        budget = budget_for(reference, held_to)
        if beside is not None and all(m.met for m in measures(beside, oracle, budget)):
            budget = budget_for(reference, held_to, beside)  # eager that fails its own budget excuses nothing
    return TensorCriteria(case, tensor, reference, kind, held_to, precision, budget, dtype, usable, bitwise)

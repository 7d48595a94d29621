"""Chooses the criteria for one tensor of one cell: its kind and its budgets, fixed before the candidate is seen."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from conformance.axes import Precision
from conformance.gates.budget import FLOAT32, Budget, TensorReference, budget_for, holds_float32, measures
from conformance.gates.distance import Distance
from conformance.gates.redraws import OverDraws
from conformance.records.cell import TensorName


@dataclass(frozen=True)
class TensorCriteria:
    """The criteria for one tensor of one cell.

    Attributes:
        case, tensor: names of the case and the tensor.
        reference: the reference of the tensor.
        kind: see `Discrepancy.kind`.
        precision: the precision whose budgets apply: the cell's, or float32 if the tensor must reach it.
        cell_precision: the precision of the cell.
        budget: the budgets at `precision`.
        dtype: name of the dtype that the contract asks for; "" if it asks for none.
        baseline: eager's tensor at the same precision; None in eager cells.
        beside: the distance of that tensor.
        bitwise: identical calls must agree bit for bit.
        others: returns the references of the tensor with other weights, with which the mode is called too.
    """

    case: str
    tensor: TensorName
    reference: TensorReference
    kind: str
    precision: Precision
    cell_precision: Precision
    budget: Budget
    dtype: str
    baseline: torch.Tensor | None
    beside: Distance | None
    bitwise: bool
    others: Callable[[], tuple[TensorReference, ...]] = tuple

    @property
    def uses_float32_budget(self) -> bool:
        """Whether float32's budgets apply."""
        return self.precision.name == FLOAT32.name

    @cached_property
    def over_draws(self) -> OverDraws | None:
        """The gate of further draws; None if the tensor is not judged over them."""
        redraws = self.reference.redraws
        judged = self.kind == "rounded" and redraws is not None and self.precision.name in redraws.rounded
        return OverDraws(self.reference, self.precision) if judged else None

    @property
    def may_be_left_to_float32(self) -> bool:
        """Whether the cell's low precision may be too coarse for the tensor: for roundings, zeros or a choice."""
        chosen = self.kind == "exact" and not self.reference.oracle.is_rounded and self.cell_precision.is_low
        return chosen or ((self.kind == "rounded" or self.is_judged_by_size) and not self.uses_float32_budget)

    @property
    def is_judged_by_size(self) -> bool:
        """Whether the tensor is what cancellation leaves, so that only its size is judged."""
        return self.kind in ("null", "remainder")

    @property
    def with_other_weights(self) -> tuple["TensorCriteria", ...]:
        """The criteria with other weights, at the budgets of the cell, or at float32's if its precision is low."""
        held = FLOAT32 if self.cell_precision.low_dtype else self.cell_precision
        rounded = [other for other in self.others() if not (other.exact or other.is_null) and held.name in other.spread]
        here = replace(self, kind="rounded", precision=held, cell_precision=held, baseline=None, beside=None)
        return tuple(replace(here, reference=other, budget=budget_for(other, held)) for other in rounded)

    def at_float32(self) -> "TensorCriteria":
        """The same criteria with float32's budgets."""
        if self.kind == "exact":
            return replace(self, cell_precision=FLOAT32)
        return replace(self, precision=FLOAT32, budget=budget_for(self.reference, FLOAT32))


def criteria_for(  # noqa: PLR0913 -- a record's fields
    case: str,
    tensor: TensorName,
    reference: TensorReference,
    precision: Precision,
    *,
    dtype: str,
    baseline: torch.Tensor | None,
    accurate: bool,
    bitwise: bool,
) -> TensorCriteria:
    """Choose the kind and the budgets of a tensor at the precision of a cell; `TensorCriteria` has the other arguments.

    If it is to be accurate, the spec asks for float32's precision in every cell.
    """
    oracle = reference.oracle
    usable = baseline if baseline is not None and baseline.shape == oracle.shape else None
    beside = oracle.distance(usable) if usable is not None else None
    held_to = precision
    if not oracle.raw.numel():
        kind = "empty"
    elif reference.exact or not oracle.is_rounded:
        kind = "exact"
    elif reference.is_null:
        kind, held_to = "remainder" if reference.is_remainder else "null", FLOAT32 if accurate else precision
    else:
        low = bool(precision.autocast)  # for TF32, each kernel chooses whether to use it; a cast model has no float32
        reaches = accurate or (low and beside is not None and holds_float32(beside, reference, precision))
        kind, held_to = ("float32", FLOAT32) if low and reaches else ("rounded", precision)
    budget = Budget(0.0, (), 0.0, 0.0)
    if kind not in ("empty", "exact"):
        budget = budget_for(reference, held_to)
        if beside is not None and all(m.met for m in measures(beside, oracle, budget)):
            budget = budget_for(reference, held_to, beside)  # if eager fails its own budgets, it excuses nothing
        elif kind == "float32" and not accurate:
            kind, held_to, budget = "rounded", precision, budget_for(reference, precision)  # nor does it ask for more
    return TensorCriteria(case, tensor, reference, kind, held_to, precision, budget, dtype, usable, beside, bitwise)

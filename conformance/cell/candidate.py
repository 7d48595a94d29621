"""Builds the callable of a candidate: the replacement of a model, on the weights of the model."""

from __future__ import annotations

from typing import Any

from conformance.axes import Prepared
from conformance.float64.adopted import adopt_state
from zoo.candidate import Candidate
from zoo.case import SpecError
from zoo.spec import Spec


def replaced(spec: Spec, candidate: Candidate, model: Any) -> Prepared:
    """The candidate with the weights, buffers, training modes and frozen parameters of the model.

    Args:
        spec: the spec of the model.
        candidate: one of its candidates.
        model: the model on representable weights.

    Raises:
        SpecError: parameters or buffers do not have the names, shapes and dtypes of the model's.
        Whatever the candidate raises.
    """
    made = candidate.build()
    where = f"candidate {candidate.name!r} of {spec.name}"
    if not callable(made):
        raise SpecError(f"{where}: build returned a {type(made).__name__}, which cannot be called")
    adopt_state(made, model, where)
    return Prepared(made, dict, made)

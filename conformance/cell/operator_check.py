"""Runs `torch.library.opcheck` on the operator that a model is one call of: schema, fake tensors, autograd, AOT."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.cell.session import CellSession
from conformance.evaluate import inputs
from conformance.evaluate.error_text import one_line
from conformance.records.observation import Discrepancy, Measure
from zoo import internals
from zoo.case import Case

OPCHECK = "opcheck"
OWN = ("aten", "prim", "prims")  # torch's own operators, which opcheck refuses


def checked(session: CellSession, model: Any) -> list[Discrepancy]:
    """What opcheck says of the operator, a discrepancy for each of its tests; only in the cell of eager fp32.

    Args:
        session: the open cell.
        model: the eager model; a wrapper of an operator names it in its attribute `operator`.
    """
    operator = getattr(model, "operator", None)
    asked = operator is not None and session.is_eager and session.precision.name == "fp32"
    if not asked or str(operator).partition(".")[0] in OWN:
        return []
    case = session.spec.cases[0]
    question = session.question(case, model)
    call = inputs.place(question.pristine, convert=lambda t: t)
    for name, leaf in inputs.named_inputs(model, call).items():
        if inputs.is_rounded(leaf):
            leaf.requires_grad_(question.differentiate and name not in question.constants)
    overload = operator if isinstance(operator, internals.OpOverload) else _resolved(operator)
    told = torch.library.opcheck(overload, call.args, dict(call.kwargs), raise_exception=False)
    return [_discrepancy(case, test, result) for test, result in told.items()]


def _resolved(packet: Any) -> Any:
    overloads = packet.overloads()
    return getattr(packet, overloads[0]) if len(overloads) == 1 else packet


def _discrepancy(case: Case, test: str, result: Any) -> Discrepancy:
    met = result == "SUCCESS"
    measure = Measure(OPCHECK, 0.0 if met else math.inf, 0.0, "" if met else one_line(result))
    return Discrepancy(case.name, test, "conduct", "", "", (measure,))

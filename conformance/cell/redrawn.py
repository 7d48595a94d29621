"""Calls the callable of a cell on further draws of a case, with its parameters and buffers changed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.axes import Prepared
from conformance.cell.session import CellSession
from conformance.errors import NotProvenError
from conformance.evaluate import evaluation, weights
from conformance.evaluate.error_text import is_out_of_memory, one_line
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.gates.sums import sample
from conformance.oracle.redraw import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.observation import REDRAWN, SHORTER, Discrepancy, TensorName
from conformance.verdict import failed_gate
from zoo.case import Case

Drawn = dict[TensorName, list[torch.Tensor | None]]


def over_draws(  # noqa: PLR0913 -- all that is known of a case
    session: CellSession, made: Prepared, eager: Any, case: Case, known: CaseReference, question: Question
) -> Drawn:
    """What the callable returns in each further draw, by the name of the tensor, as `sampled` gives it.

    Args:
        session: the cell.
        made: its callable.
        eager: the eager model; its signature names the inputs.
        case: the case.
        known: its reference.
        question: the question of its first draw.
    """
    judged = [
        (name, reference.redraws.rounded[session.precision.name].draws)
        for name, reference in known.tensors.items()
        if reference is not None and reference.redraws and session.precision.name in reference.redraws.rounded
    ]
    drawn: Drawn = {name: [] for name, _ in judged}
    for redraw in known.redraws[: max((draws for _, draws in judged), default=0)]:
        asked = _ask(session, case, question, eager, redraw)
        found = _evaluate(session, made, redraw, partial(_all_orders, made, asked))
        for name in drawn:
            tensor = found.tensors.get(name)
            drawn[name].append(tensor if tensor is None else sample(tensor))
    return drawn


def _first_order(made: Prepared, question: Question) -> Evaluation:
    return evaluation.evaluate(made.call, made.parameters_of, question)


def _all_orders(made: Prepared, question: Question) -> Evaluation:
    owner = made.parameters_of
    state = weights.state_of(owner)
    found = _first_order(made, question)
    if question.second:
        weights.reset(owner, state)
        found.tensors |= evaluation.differentiate_twice(made.call, owner, question)
    return found


def after_changes(
    session: CellSession, made: Prepared, eager: Any, case: Case, known: CaseReference
) -> Iterator[Discrepancy]:
    """Compare the callable with the oracle after the weights have changed, on full float32 operands.

    A mode may refuse another number of rows, and another order of the axes in memory. Eager may not.

    Args:
        session: the cell.
        made: its callable.
        eager: the eager model; its signature names the inputs.
        case: the case.
        known: its reference.
    """
    if known.unchanged:
        session.facts["left out with other weights"] = f"case {case.name}: {known.unchanged}"
    for redraw, there in known.changed:
        if any(r is not None and session.precision.name not in r.spread for r in there.tensors.values()):
            continue
        named = replace(case, name=f"{case.name}{SHORTER if redraw.fewer else REDRAWN}")
        question = replace(session.question(case, eager), second=False)
        plain = [replace(redraw, reordered=False)] if redraw.reordered else []  # the numbers are the same
        for way in (redraw, *plain):
            asked = _ask(session, case, question, eager, way)
            found = _evaluate_or_none(session, made, way, asked)
            if found is not None:
                break
        if found is None:
            continue
        compared = list(session.compared_values(named, there, asked, found))
        yield from compared
        if any(failed_gate(d) for d in compared):
            return  # a second change would fail too, and hide which one is to blame


def _evaluate_or_none(session: CellSession, made: Prepared, redraw: Redraw, asked: Question) -> Evaluation | None:
    """The evaluation; None if the mode raises an error, which may be its way to say that its shapes are fixed."""
    try:
        return _evaluate(session, made, redraw, partial(_first_order, made, asked))
    except Exception as problem:  # a mode may raise anything
        if session.is_eager or not redraw.fewer or is_out_of_memory(problem) or isinstance(problem, NotProvenError):
            raise
        what = "another order in memory" if redraw.reordered else "another number of rows"
        session.facts[f"{what} refused"] = one_line(problem)
        return None


def _ask(session: CellSession, case: Case, question: Question, model: Any, redraw: Redraw) -> Question:
    return redraw.question(question, session.placed(redraw.inputs(case, session.seed)), model)


def _evaluate(session: CellSession, made: Prepared, redraw: Redraw, evaluate: Callable[[], Evaluation]) -> Evaluation:
    """Evaluate with the parameters and buffers of a draw, and set them back."""
    owner = made.parameters_of
    state = weights.state_of(owner)
    first = {name: state[name] for name in session.dtypes if name in state}  # a buffer that a call has made stays
    weights.reset(owner, redraw.state(first, session.seed))
    try:
        with session.around_calls():
            return evaluate()
    finally:
        weights.reset(owner, state)

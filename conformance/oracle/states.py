"""Finds the plain attributes on which the next call of a model depends: counters, hidden states, largest values so far.

What a first call computes of the weights and keeps, a table, is none: the next call gives the same without it.
"""

from dataclasses import replace
from typing import Any

import torch

from conformance.evaluate import attributes, inputs
from conformance.evaluate.attributes import MISSING, States
from conformance.evaluate.error_text import is_out_of_memory
from conformance.evaluate.evaluation import Question, Tensors
from conformance.float64.wide import Oracle, wide_call
from zoo import Case

SAME = 1e-9  # of the size of a tensor


def find_states(oracle: Oracle, initial: States, case: Case, question: Question) -> dict[str, Any]:
    """The attributes on which the next call depends, with their values before the first call.

    Args:
        oracle: the oracle, after a call.
        initial: from `attributes.read`, before its first call.
        case: the case.
        question: the question of the case.
    """
    after = attributes.read(oracle.model)
    changed = attributes.differing(initial, after)
    if not changed:
        return {}
    asked = replace(other_question(oracle, case, question), differentiate=False)
    try:
        attributes.put(oracle.model, {path: after.get(path, MISSING) for path in changed})
        with oracle.remembering():
            second, at_second = oracle.evaluate(asked).tensors, attributes.read(oracle.model)
        oracle.forget()
        attributes.put(oracle.model, {path: initial.get(path, MISSING) for path in changed})
        first, at_first = oracle.evaluate(asked).tensors, attributes.read(oracle.model)
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        return {path: initial.get(path, MISSING) for path in changed}
    if same_tensors(first, second):
        changed = [path for path in changed if path in attributes.differing(at_first, at_second)]
    return {path: initial.get(path, MISSING) for path in changed}


def other_question(oracle: Oracle, case: Case, question: Question) -> Question:
    """The question of another draw of a case, of which no second order and no transforms are asked."""
    call = wide_call(inputs.draw(case, oracle.seed, inputs.FAR_DRAW))
    return question.of_call(call, oracle.namer)


def same_tensors(some: Tensors, others: Tensors) -> bool:
    """Whether two evaluations agree, but for the last bits."""
    return all(same(tensor, others.get(name)) for name, tensor in some.items())


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two tensors agree, but for the last bits."""
    if one is None or other is None or one.shape != other.shape:
        return one is other
    return not inputs.is_rounded(one) or float((one - other).norm()) <= SAME * float(other.norm())

"""Finds the buffers and frozen parameters that further draws leave as they are."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.evaluate import inputs, weights
from conformance.evaluate.error_text import is_out_of_memory
from conformance.evaluate.evaluation import Question
from conformance.float64.wide import Oracle
from conformance.oracle.redraw import Redraw

SAME = 1e-9  # of the size of an output


def kept(oracle: Oracle, question: Question) -> tuple[str, ...]:
    """The names of what is not drawn again, for the model makes tables of it and keeps them.

    These are the buffers that are not persistent. If the model's results do not follow its other buffers and its frozen
    parameters, because its first call has kept something, it is these too. What training changes is always drawn again:
    a model that keeps something of it is wrong.

    Args:
        oracle: the oracle.
        question: the question of a case.
    """
    tables = weights.not_persistent(oracle.model)
    trained = {name for name, parameter in weights.parameters_of(oracle.model).items() if parameter.requires_grad}
    fixed = {n for n, t in oracle.narrow_state.items() if inputs.is_rounded(t)} - trained - tables
    if not fixed:
        return tuple(sorted(tables))
    redraw = Redraw(0, weights=0, kept=tuple(trained | tables))
    asked = replace(question, differentiate=False, second=False, stacked=None, forward_mode=False)
    there = oracle.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
    try:
        oracle.evaluate(asked)
        with there.remembering():
            remembered = there.evaluate(asked).tensors
        forgotten = there.evaluate(asked).tensors
        follows = all(_same(remembered.get(name), tensor) for name, tensor in forgotten.items())
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        follows = True  # where the draws fail, they say so
    return tuple(sorted(tables if follows else tables | fixed))


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return one is other
    return not inputs.is_rounded(one) or float((one - other).norm()) <= SAME * float(other.norm())

"""Asks the question of a case: its inputs, and what is to be evaluated of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.evaluate import inputs, transforms
from conformance.evaluate.evaluation import Question
from zoo.case import Call, Case, SpecError
from zoo.spec import Spec


def question_of(  # noqa: PLR0913 -- one question, asked in two places
    spec: Spec, case: Case, seed: int, picks: inputs.Picks, convert: Callable[[Call], Call], model: Any
) -> Question:
    """The question of one case, with newly drawn inputs.

    Args:
        spec: the spec of the model.
        case: the case.
        seed: seed of inputs and cotangents.
        picks: the draw, or the rows of several draws, to take as inputs.
        convert: moves the inputs to the device and dtypes of the run.
        model: the model; its signature names the inputs.
    """
    call = convert(inputs.draw(case, seed, picks))
    pristine = inputs.place(call, convert=lambda t: t)
    names = inputs.named_inputs(model, call)
    if unknown := set(spec.constants).difference(names):
        raise SpecError(f"case {case.name}: constants: no input is named {min(unknown)!r}, but {', '.join(names)}")
    return Question(
        call,
        pristine,
        names,
        (seed, case.name),
        differentiate=spec.differentiable,
        constants=spec.constants,
        second=spec.twice_differentiable,
        stacked=convert(transforms.stack_inputs(case, seed, picks)) if spec.vmappable else None,
        forward_mode=spec.forward_mode,
        mutates=spec.mutates,
        changes_state=spec.changes_state,
        fit=spec.fit,
    )

"""Calls the callable of a cell with the inputs that the model must refuse, and notes what each call raises."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import Prepared
from conformance.cell.session import CellSession
from conformance.errors import NotProvenError
from conformance.evaluate import evaluation, inputs, weights
from conformance.evaluate.error_text import is_machine_failure, is_out_of_memory, one_line
from conformance.one_line import name_of, text_of
from conformance.records.observation import OUTPUT, RAISES, Discrepancy, Measure
from zoo import internals
from zoo.case import Call
from zoo.error_input import ErrorInput

AS_ASKED, ANOTHER, NONE = 0.0, 1.0, math.inf  # the measure of a call


def call_with_error_inputs(session: CellSession, made: Prepared) -> list[Discrepancy]:
    """Call a callable with every error input that its device has. In eager, each must raise the error of the spec.

    Args:
        session: the open cell.
        made: the callable of its mode.

    Raises:
        NotProvenError: a call did not run in the mode.
        An error of memory or of the machine, unless the spec asks for it.
    """
    state = weights.state_of(made.parameters_of)
    found = []
    for given in session.spec.error_inputs:
        if given.devices and session.cell.device not in given.devices:
            continue
        if session.cast and not _is_float32(given.draw(inputs.seed_generator(session.seed, given.name))):
            continue  # what it shows is in its dtypes
        weights.reset(made.parameters_of, state)
        value, text = _outcome(session, made, given)
        measure = Measure(RAISES, value, AS_ASKED if session.is_eager else ANOTHER, text)
        if not measure.met:
            measure = replace(measure, detail=f"{text}; it must raise {given.wanted}")
        found.append(Discrepancy(given.name, OUTPUT, "conduct", "", "", (measure,)))
        _compile_again()
    return found


def _outcome(session: CellSession, made: Prepared, given: ErrorInput) -> tuple[float, str]:
    """The measure of one call, and what it raised or returned."""
    call = given.draw(inputs.seed_generator(session.seed, given.name))
    try:
        returned = _call(session, made, call)
    except NotProvenError:
        raise
    except Exception as problem:  # a mode may raise anything
        if given.describes(problem, text_of(problem)):
            return AS_ASKED, f"{name_of(problem)}: {one_line(problem)}"
        if is_out_of_memory(problem) or is_machine_failure(problem):
            raise
        return ANOTHER, f"{name_of(problem)}: {one_line(problem)}"
    return NONE, _describe(returned)


def _is_float32(call: Call) -> bool:
    """Whether all floating tensors of a call are in float32."""
    tensors = [t for t in internals.tree_leaves((call.args, dict(call.kwargs))) if isinstance(t, torch.Tensor)]
    return all(t.dtype == torch.float32 for t in tensors if inputs.is_rounded(t))


def _call(session: CellSession, made: Prepared, call: Call) -> Any:
    device, precision, fit = session.cell.device, session.precision, session.spec.fit

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            return leaf
        return leaf.to(device, session.cast if session.cast and leaf.is_floating_point() else leaf.dtype)

    args, kwargs = internals.tree_map(placed, (call.args, dict(call.kwargs)))
    with session.around_calls():
        if fit is not None:
            return fit(made.timed_call, made.parameters_of, precision.for_training, *args, **kwargs)
        with evaluation.autocast_to(precision, device):
            return made.timed_call(*args, **kwargs)


def _describe(returned: Any) -> str:
    """What a call returned, in a few words."""
    tensors = [leaf for leaf in internals.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    words = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors]
    return ", ".join(words) or f"a {type(returned).__name__}"


def _compile_again() -> None:
    """Forget what torch.compile has compiled: after an error in tracing, it would run the same code in eager."""
    if internals.COMPILER in sys.modules:
        torch.compiler.reset()

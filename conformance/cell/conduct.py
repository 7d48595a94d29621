"""Judges what calls do apart from their numbers: containers, shared memory, state, a second call, and error inputs."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance.cell.session import CellSession
from conformance.errors import NoOracleError, NotProvenError, name_of, text_of
from conformance.evaluate import error_text, inputs, process_state, weights
from conformance.evaluate.evaluation import Evaluation, Question, autocast, autocast_to
from conformance.gates.distance import same_bytes
from conformance.oracle.reference import CaseReference
from conformance.records.cell import OUTPUT, RAISES, Discrepancy, Measure, TensorName
from zoo import Call, Case, ErrorInput, internals

AT_ONE_CALL = ("second", "vmapped", "tangent")  # kinds of results that only the measured call is asked for
OTHER_DRAWS = (
    "from one seed, this cell draws other random numbers than the oracle, so they cannot be compared; judge the model "
    "in eval mode, draw in float32, or draw the numbers outside and pass them in"
)


def compare_conduct(session: CellSession, case: Case, found: Evaluation, again: Evaluation) -> Iterator[Discrepancy]:
    """What is wrong with two calls apart from their numbers: the one that is judged, and an identical second one.

    Raises:
        NoOracleError: the calls drew other random numbers than the oracle, so their results cannot be compared.
    """
    known = session.known(case)
    if found.drawn != known.drawn:
        raise NoOracleError(OTHER_DRAWS)
    for change in dict.fromkeys(found.changes):
        yield _fault(case, change.subject, "structure", change.text)
    yield from _container(session, case, known, found)
    yield from _sharing(session, case, known, found)
    yield from _second_call(case, found, again)


def compare_overwritten(session: CellSession, case: Case, question: Question, found: Evaluation) -> list[Discrepancy]:
    """The outputs that no longer hold what they held when they were returned, after one more call with other inputs.

    Outputs that share memory with an argument, a parameter or a buffer may change with it.
    """
    if session.made.reuses_outputs:
        return []
    others = {one for one, other in found.shared if other not in found.returned}
    held = {n: t for n, t in found.returned.items() if t is not None and n not in others}
    if held and question.fit is None:
        _call_with_other_inputs(session, case, question)
    text = "it changed after it was returned, at the latest when the model was called again"
    return [
        _fault(case, name, "structure", text)
        for name, tensor in held.items()
        if (copy := found.tensors[TensorName("output", name)]) is not None and not same_bytes(tensor, copy)
    ]


def _call_with_other_inputs(session: CellSession, case: Case, question: Question) -> None:
    """Call the model forward on another draw of the case, in the memory of the same arguments."""
    picks = session.known(case).picks
    far = inputs.FAR_DRAW if isinstance(picks, int) else [(inputs.FAR_DRAW + draw, row) for draw, row in picks]
    drawn = session.place(inputs.draw(case, session.seed, far))
    if not inputs.alike(drawn, question.pristine):
        return  # a case may draw its shapes; another shape would be another compiled graph
    owner = session.made.parameters_of
    state = weights.state_of(owner)
    inputs.restore(question.call, drawn)
    watch = process_state.Watch(owner, {}, question.changes_state, noted=False)
    with autocast(question), watch.during("forward"):
        inputs.invoke(session.made.call, question.call)
    weights.reset(owner, state)
    inputs.restore(question.call, question.pristine)


def _container(session: CellSession, case: Case, known: CaseReference, found: Evaluation) -> Iterator[Discrepancy]:
    wanted, given = ({n for n, t in e.tensors.items() if t is not None and n.kind == "output"} for e in (known, found))
    if wanted != given and (wanted <= given or given <= wanted):
        return  # tensors are missing, or unexpected; that is said of each
    made = (session.made.call, session.made.parameters_of)
    scripted = any(isinstance(m, (torch.jit.ScriptModule, torch.jit.ScriptFunction)) for m in made)
    if not found.container.stands_for(known.container, scripted=scripted):
        yield _fault(case, "output", "structure", f"{found.container}, the oracle's is {known.container}")


def _sharing(session: CellSession, case: Case, known: CaseReference, found: Evaluation) -> Iterator[Discrepancy]:
    declared = set(session.spec.aliases)
    for one, other in sorted(found.shared - known.shared - declared):
        yield _fault(case, one, "structure", f"it shares memory with {other}, the oracle's does not")
    for one, other in sorted(declared - found.shared):
        yield _fault(case, one, "structure", f"it shares no memory with {other}, the spec declares that it does")


def _second_call(case: Case, found: Evaluation, again: Evaluation) -> Iterator[Discrepancy]:
    """How an identical second call differs apart from its numbers, which are compared tensor by tensor."""
    for name in dict.fromkeys([*found.tensors, *again.tensors]):
        first, second = found.tensors.get(name), again.tensors.get(name)
        if name.kind not in AT_ONE_CALL and (first is None) != (second is None):
            yield _fault(case, name, "stable", f"{_what(second)}, the first time {_what(first)}")
    for leaf in found.requires_grad.keys() & again.requires_grad.keys():
        if found.requires_grad[leaf] != again.requires_grad[leaf]:
            yield _fault(case, leaf, "stable", f"requires_grad is {again.requires_grad[leaf]}")
    if again.container != found.container:
        yield _fault(case, "output", "stable", f"{again.container}, the first time {found.container}")
    for one, other in sorted(found.shared ^ again.shared):
        which = "only then" if (one, other) in again.shared else "only the first time"
        yield _fault(case, one, "stable", f"it shares memory with {other} {which}")
    for change in dict.fromkeys(again.changes):
        if change not in found.changes:
            yield _fault(case, change.subject, "stable", f"only then: {change.text}")


def _what(tensor: torch.Tensor | None) -> str:
    return "None" if tensor is None else "a tensor"


def _fault(case: Case, subject: TensorName | str, gate: str, text: str) -> Discrepancy:
    measure = Measure(gate, math.inf, 0.0, text)
    return Discrepancy(case.name, TensorName("subject", str(subject)), "conduct", "", "", (measure,))


# The inputs that the model must refuse.

RIGHT_ERROR, OTHER_ERROR, NO_ERROR = 0.0, 1.0, math.inf  # the measure of a call


def call_with_error_inputs(session: CellSession) -> list[Discrepancy]:
    """Call a callable with every error input that its device has. In eager, each must raise the error of the spec.

    Raises:
        NotProvenError: a call did not run in the mode.
        An error of memory or of the machine, unless the spec asks for it.
    """
    state = weights.state_of(session.made.parameters_of)
    found = []
    for given in session.spec.error_inputs:
        if given.devices and session.cell.device not in given.devices:
            continue
        if session.cast and not _is_float32(given.draw(inputs.seed_generator(session.seed, given.name))):
            continue  # what it shows is in its dtypes
        weights.reset(session.made.parameters_of, state)
        value, text = _outcome(session, given)
        measure = Measure(RAISES, value, RIGHT_ERROR if session.is_eager else OTHER_ERROR, text)
        if not measure.met:
            measure = replace(measure, detail=f"{text}; it must raise {given.wanted}")
        found.append(Discrepancy(given.name, OUTPUT, "conduct", "", "", (measure,)))
        if internals.COMPILER in sys.modules:
            torch.compiler.reset()  # after an error in tracing, it would run the same code in eager
    return found


def _outcome(session: CellSession, given: ErrorInput) -> tuple[float, str]:
    """The measure of one call, and what it raised or returned."""
    call = given.draw(inputs.seed_generator(session.seed, given.name))
    try:
        returned = _call(session, call)
    except NotProvenError:
        raise
    except Exception as problem:  # a mode may raise anything
        if given.describes(problem, text_of(problem)):
            return RIGHT_ERROR, f"{name_of(problem)}: {error_text.one_line(problem)}"
        if error_text.is_out_of_memory(problem) or error_text.is_machine_failure(problem):
            raise
        return OTHER_ERROR, f"{name_of(problem)}: {error_text.one_line(problem)}"
    return NO_ERROR, _describe(returned)


def _is_float32(call: Call) -> bool:
    """Whether all floating tensors of a call are in float32."""
    return all(leaf.dtype == torch.float32 for leaf in inputs.call_leaves(call) if inputs.is_rounded(leaf))


def _call(session: CellSession, call: Call) -> Any:
    made, precision, fit = session.made, session.precision, session.spec.fit

    def placed(leaf: Any) -> Any:
        on_cpu = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
        return session.convert(leaf) if on_cpu else leaf

    call = inputs.map_call(call, placed)
    with session.around_calls():
        if fit is not None:
            return fit(made.timed_call, made.parameters_of, precision.for_training, *call.args, **call.kwargs)
        with autocast_to(precision, session.cell.device):
            return made.timed_call(*call.args, **call.kwargs)


def _describe(returned: Any) -> str:
    """What a call returned, in a few words."""
    tensors = [leaf for leaf in internals.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    words = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in tensors]
    return ", ".join(words) or f"a {type(returned).__name__}"

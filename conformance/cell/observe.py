"""Child process: runs one cell, and returns what it observed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from conformance.axes import MODES, Prepared
from conformance.cell import conduct, draws, error_inputs, tf32, transformed
from conformance.cell.policy import leave_room
from conformance.cell.redrawn import after_changes, over_draws
from conformance.cell.session import CellSession, Comparison, open_task
from conformance.errors import DamagedReferenceError, NoOracleError, NotProvenError
from conformance.evaluate import evaluation, inputs, weights
from conformance.evaluate.error_text import is_machine_failure, is_out_of_memory, one_line
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64 import graphs
from conformance.gates.compare import compare
from conformance.one_line import name_of
from conformance.one_line import one_line as bounded_line
from conformance.oracle.reference import CaseReference
from conformance.process.child_side import ChildProcess
from conformance.records.observation import LEFT_ASIDE, Discrepancy, Measure, Observation
from conformance.records.tasks import CellTask
from zoo import internals
from zoo.case import Case


def observe(task: CellTask, process: ChildProcess, comparison: Comparison = compare) -> Observation:
    """Run one cell, while other cells may run on the machine. An exception becomes part of the observation.

    Args:
        task: the cell to open.
        process: this process, which reports the phases.
        comparison: compares one tensor; see `CellSession`.
    """
    try:
        with process.shared():
            seen = _observe(task, process, comparison)
    except OSError as problem:  # the lock of the machine
        seen = Observation("machine failed", process.current, name_of(problem), one_line(problem))
    return plain_observation(replace(seen, seconds=process.seconds))


def _observe(task: CellTask, process: ChildProcess, comparison: Comparison) -> Observation:
    try:
        with process.phase("import"):
            session = open_task(task, process)
        session.comparison = comparison
        with draws.as_the_oracle(session.spec, session.precision) as drew:
            seen = observation_of(session)
        return replace(seen, facts={**seen.facts, draws.IN_FLOAT32: True}) if drew else seen
    except NoOracleError as problem:
        return Observation("no oracle", process.current, message=one_line(problem))
    except NotProvenError as problem:
        return Observation("not proven", process.current, message=one_line(problem))
    except BaseException as problem:  # noqa: BLE001 -- the model and the mode may raise anything, SystemExit too
        ending = "out of memory" if is_out_of_memory(problem) else "raised"
        if isinstance(problem, DamagedReferenceError):
            ending = "damaged reference"
        elif is_machine_failure(problem):
            ending = "machine failed"
        return Observation(ending, process.current, name_of(problem), one_line(problem))


def observation_of(session: CellSession) -> Observation:
    """The observation of all cases of an open cell.

    Raises:
        NotProvenError: the mode did not take effect.
        Whatever the mode or the model raises.
    """
    process = session.process
    with process.phase("build"):
        leave_room(session.cell.device)
        eager = session.build()
    with process.phase("prepare"):
        made = session.prepare()
    found: list[Discrepancy] = []
    for case in session.cases:
        known = session.known(case)
        question = session.question(case, eager)
        with process.phase("call"):
            with session.around_calls():
                measured, again = _two_calls(session, case.name, made, question, known)
                overwritten = conduct.overwritten(session, made, case, question, measured)
            baseline = None if session.is_eager else session.baseline(eager, question)
        with process.phase("redraw"):
            orders = replace(question, second=question.second and not measured.refused)
            drawn = over_draws(session, made, eager, case, known, orders)
        with process.phase("judge"):
            found += [*conduct.compare_conduct(session, made, case, measured, again), *overwritten]
            found += session.compared(case, known, question, measured, again, baseline, drawn)
    found += session.recompiles.discrepancies()
    facts = session.recompiles.facts() | made.proof()
    with process.phase("opcheck"):
        found += check_operator(session, eager)
    with process.phase("change"):
        for case in session.cases:
            found += after_changes(session, made, eager, case, session.known(case))
    made.proof()  # of the last calls too; the facts count the graphs of the cases alone
    facts |= session.facts | tf32.prove(session.precision, session.cell.device)
    if session.spec.error_inputs and not session.mode.forward_only:
        with process.phase("error inputs"):  # last, because they may leave anything behind
            found += error_inputs.call_with_error_inputs(session, made)
    facts |= {fact: True for case in session.cases for fact in session.known(case).assumed}
    others = dict.fromkeys(name for case in session.cases for name in session.known(case).container.others())
    facts |= {LEFT_ASIDE: ", ".join(others)} if others else {}
    cases = tuple(case.name for case in session.cases)
    return Observation("finished", discrepancies=tuple(found), cases=cases, facts=facts)


def _two_calls(
    session: CellSession, case: str, made: Prepared, question: Question, known: CaseReference
) -> tuple[Evaluation, Evaluation]:
    """The measured call and an identical second one."""
    owner = made.parameters_of
    state = weights.state_of(owner)

    def identical() -> Evaluation:
        weights.reset(owner, state)
        return evaluation.evaluate(made.call, owner, question, noted=True)

    with graphs.note_scripts() as scripts:
        calls = [session.recompiles.watched(case, identical)]
    warm = max(session.mode.warm_calls, MODES["scripted"].warm_calls if scripts else 0)
    calls += [session.recompiles.watched(case, identical) for _ in range(warm + 1)]
    session.recompiles.settle(case, identical)
    measured, again = calls[-2:]
    if question.second:
        weights.reset(owner, state)
        session.process.enter("second order")
        _add_second_order(session, measured, made, question, known)
        session.process.enter("call")
    weights.reset(owner, state)
    if transformed.transforms_of(question):
        session.process.enter("transforms")
        session.facts |= transformed.add(measured, made, question, known, eager=session.is_eager)
        session.process.enter("call")
    weights.reset(owner, state)
    return measured, again


def _add_second_order(
    session: CellSession, measured: Evaluation, made: Prepared, question: Question, known: CaseReference
) -> None:
    """Add the second derivatives to the evaluation. Outside eager, the mode may raise an error instead."""
    wanted = [name for name, reference in known.tensors.items() if reference is not None]
    try:
        measured.tensors |= evaluation.differentiate_twice(made.call, made.parameters_of, question, wanted)
    except RuntimeError as problem:
        if session.is_eager or is_out_of_memory(problem) or isinstance(problem, NotProvenError):
            raise
        measured.refused = session.facts["second order refused"] = one_line(problem)


# Runs `torch.library.opcheck` on the operator that a model is one call of: schema, fake tensors, autograd, AOT.

OPCHECK = "opcheck"
OWN = ("aten", "prim", "prims")  # torch's own operators, which opcheck refuses


def check_operator(session: CellSession, model: Any) -> list[Discrepancy]:
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
    overload = operator if isinstance(operator, internals.OpOverload) else _resolve(operator)
    told = torch.library.opcheck(overload, call.args, dict(call.kwargs), raise_exception=False)
    return [_discrepancy(case, test, result) for test, result in told.items()]


def _resolve(packet: Any) -> Any:
    overloads = packet.overloads()
    return getattr(packet, overloads[0]) if len(overloads) == 1 else packet


def _discrepancy(case: Case, test: str, result: Any) -> Discrepancy:
    met = result == "SUCCESS"
    measure = Measure(OPCHECK, 0.0 if met else math.inf, 0.0, "" if met else bounded_line(result))
    return Discrepancy(case.name, test, "conduct", "", "", (measure,))


# Makes what was observed plain, whatever the model said: texts on one bounded line, facts that JSON can hold.

MOST_VALUES, DEEPEST = 100, 6  # of all facts of a cell
LARGEST_INTEGER = 2**63


def plain_observation(seen: Observation) -> Observation:
    """The observation with every text on one bounded line, and facts that a record can hold."""
    facts = _Plain().mapping(seen.facts, 0)
    found = tuple(map(_short, seen.discrepancies))
    return replace(
        seen, error=bounded_line(seen.error), message=bounded_line(seen.message), discrepancies=found, facts=facts
    )


def _short(d: Discrepancy) -> Discrepancy:
    measures = tuple(replace(m, detail=bounded_line(m.detail)) for m in d.measures)
    accepted, weak = tuple(map(bounded_line, d.accepted)), tuple(map(bounded_line, d.weak))
    case, tensor, dtype = map(bounded_line, (d.case, d.tensor, d.dtype))
    return replace(d, case=case, tensor=tensor, dtype=dtype, measures=measures, accepted=accepted, weak=weak)


class _Plain:
    """Makes values plain, at most so many."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def mapping(self, values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """The mapping with plain values; those beyond the limit are left out."""
        return {bounded_line(key): self.value(value, depth) for key, value in values.items() if self._may_go_on()}

    def value(self, value: Any, depth: int) -> Any:
        """The value if JSON has it; otherwise its text."""
        kind = type(value)
        if value is None or kind is bool or (kind is int and abs(value) < LARGEST_INTEGER):
            return value
        if kind is float and math.isfinite(value):
            return value
        if depth < DEEPEST and kind is dict:
            return self.mapping(value, depth + 1)
        if depth < DEEPEST and kind in (list, tuple):
            return [self.value(item, depth + 1) for item in value if self._may_go_on()]
        return bounded_line(value)

    def _may_go_on(self) -> bool:
        self._left -= 1
        return self._left >= 0

"""Child process: makes the reference of a model, or observes one of its cells or one probe of a known torch fault."""

import contextlib
import importlib
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance import errors, verdict
from conformance.axes import MODES, PRECISIONS
from conformance.cache import sources
from conformance.cell import changes, otherwise, places, policy
from conformance.cell.session import CellSession, Comparison, open_task
from conformance.evaluate import attributes, error_text, evaluation, inputs, process_state, transforms, weights
from conformance.evaluate.evaluation import Evaluation, Question, autocast, autocast_to
from conformance.float64 import replacements, wide
from conformance.gates import compare, distance
from conformance.oracle import reference, reference_file
from conformance.oracle.reference import CaseReference
from conformance.plan.find import spec_at
from conformance.process import child_side, environment, forks, machine_lock
from conformance.records import cell
from conformance.records.cell import OUTPUT, RAISES, Discrepancy, Measure, Observation, TensorName
from conformance.records.tasks import CellTask, ProbeSighting, ProbeTask, ReferenceResult, ReferenceTask
from zoo import Call, Case, ErrorInput, Spec, SpecError, internals
from zoo.probe import Unavailable

RAISED = "the model raises this in eager, in float32 too"
RAISED_BESIDE = "the reference raises this, which is called in float64"
RAISED_WIDE = "the model raises this in eager, in float64 and not in float32; call it so yourself, as in model.double()"


def make_reference(task: ReferenceTask, process: child_side.ChildProcess) -> ReferenceResult:
    """Write the reference of a model to a file. An exception becomes the ending of the result."""
    process.enter("reference")
    with process.shared():
        torch.set_num_threads(1)
        with sources.note_files() as paths, sources.note_variables() as names:
            result = _write_reference(task, process)
            files = sources.contents_of_files(paths) | sources.digests_of_imported()
            return replace(result, files=files, variables=sources.contents_of_variables(names))


def _write_reference(task: ReferenceTask, process: child_side.ChildProcess) -> ReferenceResult:  # noqa: PLR0911 -- one for each ending
    spec = None
    try:
        spec = spec_at(task.location, task.model)
        twin = spec_at(task.location, spec.twin) if spec.twin else None
        _refuse_meta()
        precisions = [PRECISIONS[name] for name in task.precisions]
        workers = forks.Forks(machine_lock.idle, process.give_way)
        if task.light:
            made = reference.make_for_timing(spec, task.seed, precisions, workers)
        else:
            made = reference.make(spec, twin, task.seed, precisions, workers)
        print_of_model = weights.fingerprint(spec, task.seed, wide.prepared_model(spec, task.seed))
    except errors.SelfCheckError as problem:
        return ReferenceResult("invalid", f"{_say_changes(spec, task.seed)}{error_text.one_line(problem)}")
    except SpecError as problem:
        return ReferenceResult("invalid", error_text.one_line(problem))
    except errors.RandomError as problem:
        return ReferenceResult("random", error_text.one_line(problem))
    except errors.NoOracleError as problem:
        return ReferenceResult("no oracle", error_text.one_line(problem))
    except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
        ending = _ending(problem, "invalid")
        where = f"; {_say_where(problem, spec, task.seed)}" if ending == "invalid" and spec else ""
        said = f"{errors.name_of(problem)}: {error_text.one_line(problem)}{where}"
        return ReferenceResult(ending, errors.blame(problem, said))
    except BaseException as problem:  # noqa: BLE001 -- KeyboardInterrupt and the like say nothing about the spec
        return ReferenceResult("raised", f"{errors.name_of(problem)}: {error_text.one_line(problem)}")
    try:
        reference_file.save(Path(task.path), made)
    except OSError as problem:
        return ReferenceResult("machine failed", f"{task.path} could not be written: {error_text.one_line(problem)}")
    return ReferenceResult("ok", fingerprint=print_of_model)


def _refuse_meta() -> None:
    if torch.get_default_device().type == "meta":
        raise SpecError("its source sets torch's default device to meta when it is imported, so nothing has numbers")


def _say_changes(spec: Spec | None, seed: int) -> str:
    """What a call of the model changes and should not: then no other check of it means much."""
    with contextlib.suppress(Exception):  # the model's own code may raise anything
        assert spec is not None
        model = wide.prepared_model(spec, seed)
        question = evaluation.question_of(spec, spec.cases[0], seed, 0, lambda call: call, model)
        for change in evaluation.evaluate(model, model, question, noted=True).changes:
            return f"{change.subject} is {change.text}; "
    return ""


def _say_where(problem: Exception, spec: Spec, seed: int) -> str:
    """Where the model, or its reference, raises an error that it raises in float64."""
    if spec.trusts_model:
        return RAISED_BESIDE
    try:
        model = wide.prepared_model(spec, seed)
        question = evaluation.question_of(spec, spec.cases[0], seed, 0, lambda call: call, model)
        evaluation.evaluate(model, model, question)
    except Exception as other:  # noqa: BLE001 -- the model's own code may raise anything
        return RAISED if type(other) is type(problem) else RAISED_WIDE
    return RAISED_WIDE


def observe(task: CellTask, process: child_side.ChildProcess, comparison: Comparison = compare.compare) -> Observation:
    """Run one cell, while other cells may run on the machine. An exception becomes part of the observation."""
    try:
        with process.shared():
            seen = _observe(task, process, comparison)
    except OSError as problem:  # the lock of the machine
        seen = Observation("machine failed", process.current, errors.name_of(problem), error_text.one_line(problem))
    return plain_observation(replace(seen, seconds=process.seconds))


def _observe(task: CellTask, process: child_side.ChildProcess, comparison: Comparison) -> Observation:
    try:
        with process.phase("import"):
            session = open_task(task, process)
        steps: dict[str, str] = {}
        session.comparison = partial(places.note_step, comparison, steps) if session.spec.fit else comparison
        with policy.draw_as_the_oracle(session.spec, session.precision) as drew:
            seen = observation_of(session)
        return replace(seen, facts={**seen.facts, **steps, **({policy.IN_FLOAT32: True} if drew else {})})
    except errors.NoOracleError as problem:
        return Observation("no oracle", process.current, message=error_text.one_line(problem))
    except errors.NotProvenError as problem:
        return Observation("not proven", process.current, message=error_text.one_line(problem))
    except BaseException as problem:  # noqa: BLE001 -- the model and the mode may raise anything, SystemExit too
        ending = (
            "damaged reference" if isinstance(problem, errors.DamagedReferenceError) else _ending(problem, "raised")
        )
        said = (error_text.describe_error if errors.own_fault(problem) else error_text.one_line)(problem)
        return Observation(ending, process.current, errors.name_of(problem), said)


def _ending(problem: BaseException, otherwise: str) -> str:
    if error_text.is_machine_failure(problem):
        return "machine failed"
    return "out of memory" if error_text.is_out_of_memory(problem) else otherwise


def observation_of(session: CellSession) -> Observation:
    """The observation of all cases of an open cell.

    Raises:
        NotProvenError: the mode did not take effect.
        Whatever the mode or the model raises.
    """
    process = session.process
    with process.phase("build"):
        policy.leave_room(session.cell.device)
        session.eager = session.build()
        session.initial = attributes.read(session.eager)
    with process.phase("prepare"):
        made = session.prepare()
    found: list[Discrepancy] = []
    for case in session.cases:
        known = session.known(case)
        question = session.question(case, session.eager)
        with process.phase("call"):
            with session.around_calls():
                measured, again = _two_calls(session, case, question)
                session.draws_once |= measured.drawn != again.drawn
                overwritten = compare_overwritten(session, case, question, measured)
            baseline = None if session.is_eager else session.baseline(session.eager, question)
        with process.phase("redraw"):
            orders = replace(question, second=question.second and not measured.refused)
            drawn, other_dtypes = changes.over_draws(session, case, orders)
        with process.phase("judge"):
            found += [*compare_conduct(session, case, measured, again), *overwritten]
            found += [*session.compared(case, known, question, measured, again, baseline, drawn), *other_dtypes]
    found += session.recompiles.discrepancies()
    facts = session.recompiles.facts() | made.proof()
    found += [] if session.plain else _ask_further(session, found)
    made.proof()  # of the last calls too; the facts count the graphs of the cases alone
    with process.phase("place"):
        facts |= places.of_faults(session, found)
    facts |= session.facts | policy.prove_tf32(session.precision, session.cell.device)
    cases = tuple(case.name for case in session.cases)
    return Observation("finished", discrepancies=tuple(found), cases=cases, facts=facts | _facts_of_cases(session))


def _ask_further(session: CellSession, before: list[Discrepancy]) -> list[Discrepancy]:
    """What is found if more changes between calls, and if the call is asked otherwise; `before` was found so far."""
    process = session.process
    with process.phase("opcheck"):
        found = list(check_operator(session))
    with process.phase("change"):
        for case in session.cases:
            found += changes.after_changes(session, case, of_training=False)
    if not any(map(verdict.failed_gate, [*before, *found])):  # what is red would be red again
        with process.phase("otherwise"):
            for case in reversed(session.cases):  # the first one visits the other of train and eval mode
                found += otherwise.compare_ways(session, case)
        with process.phase("change"):
            for case in session.cases:
                found += changes.after_changes(session, case, of_training=True)
    if session.spec.error_inputs and not session.mode.forward_only:
        with process.phase("error inputs"):  # last, because they may leave anything behind
            found += call_with_error_inputs(session)
    return found


def _facts_of_cases(session: CellSession) -> dict[str, Any]:
    """What the references assume, and what the model returns that is no tensor."""
    known = [session.known(case) for case in session.cases]
    facts: dict[str, Any] = {fact: said for reference in known for fact, said in reference.assumed.items()}
    if session.is_eager and session.precision.name == "fp32":
        told = [f"{name} {what}" for reference in known for name, what in reference.unclaimed.items()]
        facts |= {cell.UNCLAIMED: ", ".join(told)} if told else {}
    others = dict.fromkeys(name for reference in known for name in reference.container.others())
    return facts | ({cell.LEFT_ASIDE: ", ".join(others)} if others else {})


def _two_calls(session: CellSession, case: Case, question: Question) -> tuple[Evaluation, Evaluation]:
    """The measured call and an identical second one."""
    made, owner, known = session.made, session.made.parameters_of, session.known(case)
    state = weights.state_of(owner)

    def evaluate(asked: Question) -> Evaluation:
        weights.reset(owner, state)
        return evaluation.evaluate(made.call, owner, asked, noted=True)

    identical = partial(evaluate, replace(question, states={}))  # a state moves on, as it does from step to step
    with replacements.note_scripts() as scripts:
        calls = [session.recompiles.watch(case.name, identical)]
    warm = max(session.mode.warm_calls, MODES["scripted"].warm_calls if scripts else 0)
    calls += [session.recompiles.watch(case.name, identical) for _ in range(warm + 1)]
    session.recompiles.settle(case.name, identical)
    measured, again = (evaluate(question), evaluate(question)) if question.states else calls[-2:]
    if question.second:
        weights.reset(owner, state)
        session.process.enter("second order")
        _add_second_order(session, case, measured, question)
        session.process.enter("call")
    weights.reset(owner, state)
    if transforms.transform_kinds(question):
        session.process.enter("transforms")
        tangents = ((n.leaf, t) for n, t in known.tensors.items() if n.kind == "tangent")
        zero = {leaf for leaf, t in tangents if t is not None and t.oracle.norm == 0.0}
        session.facts |= transforms.add(measured, made, question, zero, raises=session.is_eager)
        session.process.enter("call")
    weights.reset(owner, state)
    tensors = {leaf: t for leaf, t in measured.returned.items() if leaf in known.requires_grad}
    session.returned[case.name] = {leaf: t.dtype for leaf, t in tensors.items() if t is not None}
    return measured, again


def _add_second_order(session: CellSession, case: Case, measured: Evaluation, question: Question) -> None:
    """Add the second derivatives to the evaluation. Outside eager, the mode may raise an error instead."""
    made = session.made
    wanted = [name for name, r in session.known(case).tensors.items() if r is not None]
    try:
        measured.tensors |= evaluation.differentiate_twice(made.call, made.parameters_of, question, wanted)
    except RuntimeError as problem:
        if session.is_eager or error_text.is_out_of_memory(problem) or isinstance(problem, errors.NotProvenError):
            raise
        measured.refused = session.facts["second order refused"] = error_text.one_line(problem)


# Runs `torch.library.opcheck` on the operator that a model is one call of: schema, fake tensors, autograd, AOT.

OPCHECK = "opcheck"
OWN = ("aten", "prim", "prims")  # torch's own operators, which opcheck refuses


def check_operator(session: CellSession) -> list[Discrepancy]:
    """What opcheck says of the operator, a discrepancy for each of its tests; only in the cell of eager fp32.

    A wrapper of an operator names it in its attribute `operator`.
    """
    operator: Any = getattr(session.eager, "operator", None)
    asked = operator is not None and session.is_eager and session.precision.name == "fp32"
    if not asked or str(operator).partition(".")[0] in OWN:
        return []
    case = session.spec.cases[0]
    question = session.question(case, session.eager)
    call = inputs.place(question.pristine, convert=lambda t: t)
    for name, leaf in inputs.named_inputs(session.eager, call).items():
        if inputs.is_rounded(leaf):
            leaf.requires_grad_(question.differentiate and name not in question.constants)
    overloads = [] if isinstance(operator, internals.OpOverload) else operator.overloads()
    if len(overloads) == 1:
        operator = getattr(operator, overloads[0])
    told = torch.library.opcheck(operator, call.args, dict(call.kwargs), raise_exception=False)
    return [_discrepancy(case, test, result) for test, result in told.items()]


def _discrepancy(case: Case, test: str, result: Any) -> Discrepancy:
    met = result == "SUCCESS"
    measure = Measure(OPCHECK, 0.0 if met else math.inf, 0.0, "" if met else errors.one_line(result))
    return Discrepancy(case.name, TensorName("subject", test), "conduct", "", "", (measure,))


# Makes what was observed plain, whatever the model said: texts on one bounded line, facts that JSON can hold.

MOST_FACTS = 100
LARGEST_INTEGER = 2**63


def plain_observation(seen: Observation) -> Observation:
    """The observation with every text on one bounded line, and facts that a record can hold."""
    facts = {errors.one_line(fact): _plain(value) for fact, value in list(seen.facts.items())[:MOST_FACTS]}
    error, message, found = (
        errors.one_line(seen.error),
        errors.one_line(seen.message),
        tuple(map(_short, seen.discrepancies)),
    )
    return replace(seen, error=error, message=message, discrepancies=found, facts=facts)


def _short(d: Discrepancy) -> Discrepancy:
    measures = tuple(replace(m, detail=errors.one_line(m.detail)) for m in d.measures)
    tensor = replace(d.tensor, leaf=errors.one_line(d.tensor.leaf))
    return replace(d, case=errors.one_line(d.case), tensor=tensor, measures=measures)


def _plain(value: Any) -> Any:
    """A number that JSON has, or a text for anything else."""
    kind = type(value)
    if value is None or kind is bool or (kind is int and abs(value) < LARGEST_INTEGER):
        return value
    return value if kind is float and math.isfinite(value) else errors.one_line(value)


def observe_probe(task: ProbeTask, process: child_side.ChildProcess) -> ProbeSighting:
    """Run one probe with its own compile cache. An exception becomes part of the result."""
    environment.use_cache(task.cache)
    warnings.simplefilter("ignore")  # a deprecation is not a fault
    torch.set_num_threads(1)
    probe = importlib.import_module(task.module).PROBE
    process.enter("observe")
    try:
        seen = probe.observe(task.device)
    except Unavailable as reason:
        return ProbeSighting("unavailable", error_text.one_line(reason))
    except BaseException as problem:  # noqa: BLE001 -- a probe may raise anything
        return ProbeSighting("raised", f"{errors.name_of(problem)}: {error_text.one_line(problem)}")
    if not isinstance(seen, str):
        return ProbeSighting("raised", f"TypeError: observe returned {seen!r}")
    return ProbeSighting("saw", seen)


# Judges what calls do apart from their numbers: containers, shared memory, state, a second call, and error inputs.

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
        raise errors.NoOracleError(OTHER_DRAWS)
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
        if (copy := found.tensors[TensorName("output", name)]) is not None and not distance.same_bytes(tensor, copy)
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
    except errors.NotProvenError:
        raise
    except Exception as problem:  # a mode may raise anything
        if given.describes(problem, errors.text_of(problem)):
            return RIGHT_ERROR, f"{errors.name_of(problem)}: {error_text.one_line(problem)}"
        if error_text.is_out_of_memory(problem) or error_text.is_machine_failure(problem):
            raise
        return OTHER_ERROR, f"{errors.name_of(problem)}: {error_text.one_line(problem)}"
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

"""Asks for a call in the other ways in which people ask, and compares each answer with the oracle's.

The measured call asks for all gradients, once, on a fresh state. People also serve without gradients, train with some
weights frozen, accumulate gradients, and go back twice. The numbers must be the same.
"""

import contextlib
import copy
import io
import math
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from conformance.axes import Prepared
from conformance.cell import modes
from conformance.cell.session import CellSession
from conformance.errors import NotProvenError, call_theirs, name_of
from conformance.evaluate import attributes, backward, evaluation, inputs, transforms, weights
from conformance.evaluate.error_text import is_machine_failure, is_out_of_memory, one_line
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64.wide import ModuleMemory
from conformance.gates.distance import same_bytes
from conformance.oracle import inference
from conformance.oracle.draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.cell import HOOKED, Discrepancy, Measure, TensorName, way_of
from zoo.case import Case

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]
Ask = Callable[[Callable[..., Any], Any, Question, Question], Evaluation]

LOSS_SCALE = 2.0**8  # a power of two rounds nothing, and a larger one may overflow in a float16 part of a model
INFERRED = ("output", "buffer", "attribute", "after", "put")  # the kinds of tensors that a call gives without gradients


@dataclass(frozen=True)
class Way:
    """A way to ask for a call.

    Attributes:
        text: what a report says of it, after the name of the case.
        ask: evaluates a callable of an owner on a question; the last argument asks for another draw.
        kinds: the kinds of the tensors that are compared.
        other_graph: a compiler compiles the model again for it.
        demanding: forward may raise an error in eager, for want of what it is not given.
        refusable: any mode may raise an error for it.
        observed: what proves the mode may watch the call; some fast paths of inference run only unwatched.
        wanted: what the answer is compared with; None: the case's reference.
        escapable: the mode may have nothing to do for it, so an answer that did not run in the mode is left out.
    """

    text: str
    ask: Ask
    kinds: tuple[str, ...] = ("gradient",)
    other_graph: bool = False
    demanding: bool = False
    refusable: bool = False
    observed: bool = True
    wanted: CaseReference | None = None
    escapable: bool = False


def compare_ways(session: CellSession, case: Case) -> Iterator[Discrepancy]:
    """Compare what a cell's callable gives in each way with the oracle's tensors.

    An error is red, since the measured call has raised none. It is a fact alone if the way is refusable, if eager
    raises one too, or if forward raises it in eager: a model may need the gradients that it is not asked for.

    Args:
        session: the open cell.
        case: the case.

    Raises:
        NotProvenError: a call did not run in the mode.
        An error of memory or of the machine.
    """
    whole = session.question(case, session.eager)
    question = replace(whole, second=False, stacked=None, forward_mode=False)
    other = question.of_call(session.place(inputs.draw(case, session.seed, inputs.FAR_DRAW)), session.eager)
    known, made = session.known(case), session.made
    for way in _ways(session, case, whole, known):
        named, passes = way_of(case.name, way.text), _Passes()
        try:
            observed = way.observed or session.mode.compiles  # whose proof counts the runs of graphs alone
            call = made.call if observed else made.timed_call
            found = _answer(way.ask, call, made.parameters_of, replace(question, gradients=passes), other)
        except NotProvenError:
            if not way.escapable:
                raise
            continue
        except Exception as problem:  # the model and the mode may raise anything
            if is_out_of_memory(problem) or is_machine_failure(problem):
                raise
            if _may_refuse(way, session, question, other, begun=passes.begun):
                session.note_refusal(way.text, problem)
            else:
                error = Measure("structure", math.inf, 0.0, f"it raises {name_of(problem)}: {one_line(problem)}")
                yield Discrepancy(named, TensorName("subject", "the call"), "conduct", "", "", (error,))
            continue
        wanted = way.wanted or known
        tensors = {n: r for n, r in wanted.tensors.items() if n.kind in way.kinds}
        tensors = {n: r for n, r in tensors.items() if n.kind != "gradient" or n in found.tensors}  # of what was asked
        wanted = replace(wanted, tensors=tensors, requires_grad=found.requires_grad)
        yield from session.compared_values(named, wanted, whole, found)


def _ways(session: CellSession, case: Case, question: Question, known: CaseReference) -> Iterator[Way]:
    """The ways in which the cell is asked. A compiler compiles again under no_grad, and else if no case is left out."""
    mode, is_first, is_low = session.mode, case is session.spec.cases[0], bool(session.precision.low_dtype)
    if question.fit is not None or (mode.compiles and is_low) or (not is_first and (mode.compiles or is_low)):
        return
    inferred = known.without_gradients(session.precision)
    other_dtypes = is_low and inference.has_fast_path(session.eager)  # torch's fast path leaves autocast's dtypes
    ways = [] if other_dtypes else [replace(way, wanted=inferred) for way in INFERENCE]
    if question.differentiate and not mode.forward_only:
        ways += GRADIENTS
        if not is_low:  # there, the cotangents may have a scale already, and only float32 has another draw's budgets
            ways += [SCALED, *[replace(SECOND, wanted=known.following)] * bool(known.following)]
    if is_first and not is_low:
        ways += [*_copies(session, case, known), *_vmaps(session, question)]
        ways += [Way(THREADS, partial(_call_in_threads, session.spec.threads), WHOLE)] * (session.spec.threads > 1)
        ways += _there_and_back(session)  # last: torch compiles no module again whose other mode has nothing to compile
    for number, way in enumerate(ways):
        if not (number and way.other_graph and mode.compiles and session.left_out):
            yield way


class _Passes:
    """Goes back as the measured call does, and knows whether a pass has begun."""

    def __init__(self) -> None:
        self.begun = False

    def __call__(self, *args: Any, **kwargs: Any) -> Gradients:
        self.begun = True
        return backward.gradients(*args, **kwargs)


def _answer(ask: Ask, call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """What a callable gives. What it leaves in the module, such as tensors of inference, is taken away."""
    state, memory = weights.state_of(owner), ModuleMemory(owner)
    try:
        return ask(call, owner, question, other)
    finally:
        memory.restore()
        weights.reset(owner, state)


def _may_refuse(way: Way, session: CellSession, question: Question, other: Question, *, begun: bool) -> bool:
    """Whether an error is no fault of the mode; `begun` tells whether a pass backward had begun."""
    if way.refusable:
        return True
    if session.is_eager:
        return way.demanding and not begun
    try:
        _answer(way.ask, session.eager, session.eager, question, other)
    except Exception as problem:  # the model may raise anything
        if is_out_of_memory(problem):
            raise
        return True
    return False


# Without gradients.


def _infer(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
    call: Callable[..., Any],
    owner: Any,
    question: Question,
    _: Question,
) -> Evaluation:
    with context():
        return evaluation.evaluate(call, owner, replace(question, differentiate=False))


_INFERS: dict[str, Any] = {"kinds": INFERRED, "other_graph": True, "observed": False}
INFERENCE = (
    Way("under no_grad", partial(_infer, torch.no_grad), demanding=True, **_INFERS),
    Way("under inference_mode", partial(_infer, torch.inference_mode), refusable=True, **_INFERS),
)

# Gradients for some of the leaves.


def _freeze(call: Callable[..., Any], owner: Any, question: Question, _: Question) -> Evaluation:
    """Evaluate with parameters that need no gradient."""
    trained = [p for p in weights.parameters_of(owner).values() if p.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        return evaluation.evaluate(call, owner, question)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _train(call: Callable[..., Any], owner: Any, question: Question, _: Question) -> Evaluation:
    """Evaluate with inputs that need no gradient, as in training."""
    return evaluation.evaluate(call, owner, replace(question, constants=tuple(question.names)))


def _ask_for_first(call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """Evaluate with one input that needs a gradient, and nothing else that does."""
    inner = [
        name for name, leaf in question.names.items() if inputs.is_rounded(leaf) and name not in question.constants
    ]
    return _freeze(call, owner, replace(question, constants=(*question.constants, *inner[1:])), other)


# Another way back through the same graph: functions in the place of `backward.gradients`.


def _back(gradients: Callable[..., Gradients]) -> Ask:
    def ask(call: Callable[..., Any], owner: Any, question: Question, _: Question) -> Evaluation:
        return evaluation.evaluate(call, owner, replace(question, gradients=gradients))

    return ask


def _accumulate(roots: Tensors, wanted: Tensors, cotangents: Tensors, **_: Any) -> Gradients:
    """The gradients, added to zeros."""
    for leaf in wanted:
        leaf.grad = torch.zeros_like(leaf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns where these lie otherwise in memory than the leaf
        torch.autograd.backward(roots, cotangents)
    return [leaf.grad for leaf in wanted]


def _halve_in_place(roots: Tensors, wanted: Tensors, cotangents: Tensors, **_: Any) -> Gradients:
    """The gradients, halved where they are, as clipping and unscaling do it, and doubled again.

    If two leaves have one tensor for their gradients, it is halved twice.
    """
    for leaf in wanted:
        leaf.grad = None
    torch.autograd.backward(roots, cotangents)
    for leaf in wanted:
        if leaf.grad is not None:
            leaf.grad.mul_(0.5)
    return [None if leaf.grad is None else leaf.grad * 2.0 for leaf in wanted]


def _go_back_twice(roots: Tensors, wanted: Tensors, cotangents: Tensors, **_: Any) -> Gradients:
    """Half of what two passes add up to."""
    for leaf in wanted:
        leaf.grad = None
    torch.autograd.backward(roots, cotangents, retain_graph=True)
    torch.autograd.backward(roots, cotangents)
    return [None if leaf.grad is None else leaf.grad / 2.0 for leaf in wanted]


def _spread_out(roots: Tensors, wanted: Tensors, cotangents: Tensors, **options: Any) -> Gradients:
    """The gradients for cotangents whose numbers lie apart in memory."""
    return backward.gradients(roots, wanted, [_apart(c) for c in cotangents], **options)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, the axes in reversed order in memory, and a zero after each number."""
    backwards = tuple(reversed(range(tensor.dim())))
    turned = tensor.permute(backwards)
    turned = torch.stack([turned, torch.zeros_like(turned)], dim=-1)[..., 0]
    return turned.permute(backwards)


def _leave_out(roots: Tensors, wanted: Tensors, cotangents: Tensors, **options: Any) -> Gradients:
    """The gradients if the last output is not used."""
    return backward.gradients(roots[:-1], wanted, cotangents[:-1], **options)


def _give_zeros(roots: Tensors, wanted: Tensors, cotangents: Tensors, **options: Any) -> Gradients:
    """The gradients if the cotangent of the last output is zero."""
    return backward.gradients(roots, wanted, [*cotangents[:-1], torch.zeros_like(cotangents[-1])], **options)


def _leave_one_out(call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """Evaluate, and add what an unused output changes in place of one whose cotangent is zero: nothing, if right."""
    found = evaluation.evaluate(call, owner, question)
    if sum(found.requires_grad.values()) < 2:  # noqa: PLR2004 -- outputs, of which one is left out
        return found
    unused, zeros = (_answer(_back(f), call, owner, question, other).tensors for f in (_leave_out, _give_zeros))
    gradients = {name: t for name, t in found.tensors.items() if name.kind == "gradient"}
    return replace(found, tensors=found.tensors | _add_difference(gradients, unused, zeros))


def _add_difference(
    tensors: evaluation.Tensors, one: evaluation.Tensors, two: evaluation.Tensors
) -> evaluation.Tensors:
    """Tensors, with what differs between two other answers added: nothing, if these are right."""
    moved: evaluation.Tensors = {}
    for name, whole in tensors.items():
        a, b = one.get(name), two.get(name)
        if whole is None or not inputs.is_rounded(whole):
            moved[name] = a
        else:
            a, b = (torch.zeros_like(whole) if t is None else t for t in (a, b))
            moved[name] = whole + (a - b)
    return moved


def _scale(call: Callable[..., Any], owner: Any, question: Question, _: Question) -> Evaluation:
    return evaluation.evaluate(call, owner, replace(question, scale=LOSS_SCALE * question.scale))


def _call_between(call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """Evaluate, with another call of the model between forward and backward."""

    def gradients(*given: Any, **options: Any) -> Gradients:
        with evaluation.autocast(question):
            inputs.invoke(call, other.call)
        return backward.gradients(*given, **options)

    return evaluation.evaluate(call, owner, replace(question, gradients=gradients))


def _call_again(call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """Evaluate another draw after a call, in the state that the call has left."""
    evaluation.evaluate(call, owner, question)
    return evaluation.evaluate(call, owner, replace(other, states=attributes.current(owner, question.states)))


WHOLE = (*INFERRED, "gradient")
SCALED = Way("with a loss 256 times as large", _scale)
SECOND = Way("called a second time", _call_again, WHOLE, other_graph=True, demanding=True)
GRADIENTS = (
    Way("into a .grad that is there", _back(_accumulate)),
    Way("with .grad halved in place", _back(_halve_in_place)),
    Way("with a cotangent that is not contiguous", _back(_spread_out)),
    Way("with another call before backward", _call_between, refusable=True),
    Way("with an output unused", _leave_one_out),
    Way("twice with retain_graph", _back(_go_back_twice), refusable=True),
    Way("with frozen weights", _freeze, ("output", "gradient"), other_graph=True, demanding=True),
    Way("for the weights alone", _train, other_graph=True, demanding=True),
    Way("for the first input alone", _ask_for_first, other_graph=True, demanding=True),
)

# After the module was in its other mode, as it is between two epochs.


def _there_and_back(session: CellSession) -> list[Way]:
    owner = session.made.parameters_of
    if session.mode.specialised:
        return []
    if len({part.training for part in attributes.parts_with_mode(owner)}) != 1:
        return []  # a part in a mode of its own would not come back
    text = "after eval() and train()" if owner.training else "after train() and eval()"
    return [Way(text, _visit_other_mode, WHOLE, other_graph=True, refusable=True, escapable=True)]


def _visit_other_mode(call: Callable[..., Any], owner: Any, question: Question, other: Question) -> Evaluation:
    """Evaluate after a visit to the other mode, with a call there if that is eval mode, which learns nothing.

    What eval() has folded may be rounded otherwise than its parts: in eval mode, a second visit must change nothing.
    """
    training = owner.training

    def visit() -> None:
        owner.train(not training)
        if training:
            state = weights.state_of(owner)
            with torch.no_grad(), evaluation.autocast(question):
                inputs.invoke(call, other.call)
            weights.reset(owner, state)  # it may count its calls in eval mode too
        owner.train(training)

    with attributes.restored(owner, ()):
        if training:
            visit()
            return evaluation.evaluate(call, owner, question)
        found, answers = evaluation.evaluate(call, owner, question), []
        for _ in range(2):
            visit()
            state = weights.state_of(owner)
            answers.append(evaluation.evaluate(call, owner, question).tensors)
            weights.reset(owner, state)
        return replace(found, tensors=_add_difference(found.tensors, *reversed(answers)))


# From several threads at once, where the spec claims that it works.

THREADS = "from several threads at once"
CALLS = 64  # while the other threads call
SWITCH = 1e-5  # seconds after which another thread gets its turn


def _call_in_threads(
    threads: int, call: Callable[..., Any], owner: Any, question: Question, other: Question
) -> Evaluation:
    """Evaluate while other threads evaluate another draw; the first answer that differs from the one alone, if any."""
    all_run, ended, usual = threading.Barrier(threads), threading.Event(), sys.getswitchinterval()

    def disturb(own: Question) -> None:
        all_run.wait()
        while not ended.is_set():
            evaluation.evaluate(call, owner, own)

    alone = evaluation.evaluate(call, owner, question)
    draws = [other.of_call(inputs.place(other.pristine, lambda t: t), owner) for _ in range(threads - 1)]
    with ThreadPoolExecutor(threads - 1) as pool:
        sys.setswitchinterval(SWITCH)
        try:
            others = [pool.submit(disturb, own) for own in draws]
            all_run.wait()
            found = [evaluation.evaluate(call, owner, question) for _ in range(CALLS)]
        finally:
            ended.set()
            sys.setswitchinterval(usual)
    for disturbing in others:
        disturbing.result()  # raises what it has raised
    return next((one for one in found if not _same(one, alone)), alone)


def _same(one: Evaluation, other: Evaluation) -> bool:
    pairs = ((one.tensors[name], other.tensors.get(name)) for name in one.tensors)
    return all(a is b if a is None or b is None else same_bytes(a, b) for a, b in pairs)


# Under `torch.vmap`, where the spec claims that it works. The measured call has the samples of all inputs in front.


def _vmaps(session: CellSession, question: Question) -> list[Way]:
    """The ways to stack samples. Where only one input has some, the first sample is the call itself."""
    if question.stacked is None or session.facts.get("vmap refused"):
        return []
    ways = [
        Way(
            "under vmap over the last axis",
            partial(_stack, session, question, last=True),
            ("vmapped",),
            other_graph=True,
        )
    ]
    tensors = [leaf for leaf in inputs.call_leaves(question.stacked) if isinstance(leaf, torch.Tensor)]
    for alone in range(len(tensors) if len(tensors) > 1 else 0):
        text = f"under vmap over input {alone} alone"
        ways.append(
            Way(text, partial(_stack, session, question, alone=alone), ("output",), other_graph=True, refusable=True)
        )
    return ways


def _stack(
    session: CellSession, asked: Question, call: Any, owner: Any, _: Question, __: Question, **how: Any
) -> Evaluation:
    made = session.made if call is session.made.call else Prepared(call, dict, owner)
    found = transforms.under_vmap(made, asked, **how)
    if "alone" in how:
        found = {TensorName("output", name.leaf): t if t is None else t[0] for name, t in found.items()}
    return Evaluation(found)


# A copy of the module. People copy modules for averages and ensembles, save them and load them, and call them on other
# weights.

MOST_BYTES = 2**28  # of a module that is copied


def _copies(session: CellSession, case: Case, known: CaseReference) -> list[Way]:
    """The ways to ask a copy of the cell's callable, if that is the module itself. A module may refuse to be copied."""
    made = session.made
    owner = made.parameters_of
    if made.call is not owner or not isinstance(owner, torch.nn.Module) or "forward" in vars(owner):
        return []  # a forward that is put on an object may be ours, for a callable that owns modules
    if sum(t.nbytes for t in _tensors_of(owner)) > MOST_BYTES:
        return []
    copiers: dict[str, Callable[[Any], Any]] = {
        "in a deep copy": copy.deepcopy,
        "saved and loaded": _save_and_load,
        "with its state_dict in a fresh build": partial(_load_state, session),
    }
    asks: dict[str, Ask] = {text: partial(_ask_copy, copier) for text, copier in copiers.items()}
    asks["after its deep copy was changed"] = _change_copy
    kinds = INFERRED if HOOKED in known.assumed else WHOLE  # a copied parameter has no hooks
    ways = [Way(text, ask, kinds, refusable=True) for text, ask in asks.items()]
    if not isinstance(owner, torch.jit.ScriptModule):
        ways.append(Way("pickled", partial(_ask_copy, _pickle), kinds, refusable=True))
        moves = known.states or session.spec.changes_state  # the state of the module, and not of what holds the weights
        ways += [_with_weights(session, case, *changed) for changed in known.changed[:1] if not moves]
    return ways


def _ask_copy(copier: Callable[[Any], Any], _: Callable[..., Any], owner: Any, question: Question, __: Question) -> Any:
    copied = call_theirs(copier, owner)
    return evaluation.evaluate(copied, copied, question)


def _save_and_load(owner: Any) -> Any:
    file = io.BytesIO()
    is_saved_by_jit = isinstance(owner, torch.jit.ScriptModule)
    torch.jit.save(owner, file) if is_saved_by_jit else torch.save(owner, file)
    file.seek(0)
    return torch.jit.load(file) if is_saved_by_jit else torch.load(file, weights_only=False)


def _pickle(owner: Any) -> Any:
    return call_theirs(pickle.loads, call_theirs(pickle.dumps, owner))


def _load_state(session: CellSession, owner: Any) -> Any:
    """The module built anew from another seed, with the saved state of this one."""
    saved = {name: copy.deepcopy(value) for name, value in owner.state_dict().items()}
    other = replace(session, seed=session.seed + 1)
    fresh = modes.prepare(session.mode, session.spec, other.build).parameters_of
    fresh.load_state_dict(saved)
    return fresh


def _tensors_of(owner: Any) -> list[torch.Tensor]:
    return [*weights.parameters_of(owner).values(), *weights.buffers_of(owner).values()]


def _change_copy(call: Callable[..., Any], owner: Any, question: Question, _: Question) -> Evaluation:
    """Evaluate after all numbers of a copy are zero."""
    for tensor in _tensors_of(call_theirs(copy.deepcopy, owner)):
        torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).zero_()
    return evaluation.evaluate(call, owner, question)


def _with_weights(session: CellSession, case: Case, redraw: Redraw, there: CaseReference) -> Way:
    def ask(_: Callable[..., Any], owner: Any, question: Question, __: Question) -> Evaluation:
        """Evaluate on the weights of a further draw, which the module does not hold."""
        holder = call_theirs(copy.deepcopy, owner)
        weights.reset(holder, redraw.state(weights.state_of(owner), session.seed))
        held = weights.parameters_of(holder) | weights.buffers_of(holder)
        asked = redraw.question(question, session.place(redraw.inputs(case, session.seed)), session.eager)
        return evaluation.evaluate(partial(_call_on, owner, held), holder, asked)

    wanted = there.of_call(session.precision)  # a checkpoint goes back after the weights are the module's again
    return Way("by functional_call on other weights", ask, ("output",), refusable=True, wanted=wanted)


def _call_on(owner: Any, held: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    return torch.func.functional_call(owner, held, args, kwargs)

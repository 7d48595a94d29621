"""Calls the callable of a cell on further draws, and after what people change between calls, and sets all of it back.

Weights and buffers change in place; so do the number of rows, the order in memory, attributes, and train and eval mode.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from conformance import errors, verdict
from conformance.cell import modes
from conformance.cell.session import CellSession
from conformance.evaluate import attributes, error_text, evaluation, process_state, weights
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64.wide import ModuleMemory
from conformance.gates import compare, distance
from conformance.oracle.draws import Redraw
from conformance.records import cell
from conformance.records.cell import Discrepancy, TensorName
from zoo import Case

Drawn = dict[TensorName, list[torch.Tensor | None]]


def over_draws(session: CellSession, case: Case, question: Question) -> tuple[Drawn, list[Discrepancy]]:
    """What the callable returns in each further draw, by the name of the tensor, as `sample` gives it.

    The discrepancies are the outputs whose dtype is another one than in the measured call.
    """
    known, others = session.known(case), dict[str, Discrepancy]()
    judged = [
        (name, r.redraws.rounded[session.precision.name].draws)
        for name, r in known.tensors.items()
        if r is not None and r.redraws and session.precision.name in r.redraws.rounded
    ]
    drawn: Drawn = {name: [] for name, _ in judged}
    for number, redraw in enumerate(known.redraws[: max((draws for _, draws in judged), default=0)]):
        found = None
        if number % 2 and _may_reorder(session, case):
            found = _evaluate_or_none(session, case, question, replace(redraw, reordered=True), refusable=True)
        if found is None:
            found = _evaluate(session, redraw, _ask(session, case, question, redraw))
        for name in drawn:
            tensor = found.tensors.get(name)
            drawn[name].append(tensor if tensor is None else distance.sample(tensor))
        for leaf, dtype in session.returned[case.name].items():
            tensor = found.returned.get(leaf)
            if tensor is not None and tensor.dtype != dtype:
                has, wanted = map(compare.name_of, (tensor.dtype, dtype))
                way = cell.way_of(case.name, cell.OTHER_WEIGHTS)
                others[leaf] = Discrepancy(way, TensorName("output", leaf), "rounded", has, wanted, ())
    return drawn, [*others.values()]


def _may_reorder(session: CellSession, case: Case) -> bool:
    """Whether some further draws lie in another order in memory, for which a compiler compiles a model again.

    Random numbers are drawn in the order in which a tensor lies in memory.
    """
    if process_state.DRAWS in session.spec.changes_state:
        return False
    return not session.mode.compiles or (case is session.spec.cases[0] and not session.left_out)


def after_changes(session: CellSession, case: Case, *, of_training: bool) -> Iterator[Discrepancy]:
    """Compare the callable with the oracle after the weights, and more, have changed, on full float32 operands.

    A mode and an exported program may refuse what is more than other weights. Eager may not. Going from train to eval
    mode or back comes last, `of_training`: torch compiles no module again whose other mode has nothing to compile.
    """
    known = session.known(case)
    if known.unchanged:
        session.facts["left out with other weights"] = f"case {case.name}: {known.unchanged}"
    for redraw, there in known.changed:
        if of_training != (redraw.training is not None) or any(
            r is not None and session.precision.name not in r.spread for r in there.tensors.values()
        ):
            continue
        named = cell.way_of(case.name, redraw.text)
        if redraw.changes_module and not _takes(session, redraw):
            continue
        question = replace(session.question(case, session.eager), second=False)
        found = _evaluate_or_none(session, case, question, redraw)
        if found is None and redraw.reordered:  # the numbers are the same
            found = _evaluate_or_none(session, case, question, replace(redraw, reordered=False))
        if found is None:
            continue
        asked = redraw.question(question, question.call, session.eager)
        wanted, same_dtypes = there.of_call(session.precision), not redraw.changes_module
        compared = list(session.compared_values(named, wanted, asked, found, same_dtypes=same_dtypes))
        failed = any(verdict.failed_gate(d) for d in compared)
        if failed and session.draws_once and found.drawn != there.drawn:
            session.facts[cell.DRAWN_OTHERWISE] = redraw.text
            continue
        if failed and redraw.settings and _is_as_made_anew(session, case, question, redraw, found):
            session.facts[cell.AS_MADE_ANEW] = True
            continue
        yield from compared
        if failed:
            return  # a second change would fail too, and hide which one is to blame


def _takes(session: CellSession, redraw: Redraw) -> bool:
    """Whether the cell is asked for another mode or other attributes: a program has none, and a compiler takes time.

    A script does not run a `train` of the model's own.
    """
    owner = session.made.parameters_of
    if session.mode.specialised or (session.mode.compiles and session.left_out):
        return False
    if redraw.training is not None and isinstance(owner, torch.jit.ScriptModule):
        return all(type(part).train is torch.nn.Module.train for part in session.eager.modules())
    return len(attributes.current(owner, dict(redraw.settings))) == len(redraw.settings)


def _is_as_made_anew(session: CellSession, case: Case, question: Question, redraw: Redraw, found: Evaluation) -> bool:
    """Whether the mode, made anew of a model with these attributes, gives the same, so that it has kept nothing.

    It may differ from eager there and not as built: a library may ask whether it is compiled. That excuses only what
    torch.compile compiles; another mode may have a number written into it.
    """

    def build(*given: Any) -> Any:
        model = session.build(*given)
        attributes.put(model, dict(redraw.settings))
        return model

    other = copy.copy(session)
    other.made, compiled = modes.prepare(session.mode, session.spec, build), modes.compilations()
    anew = _evaluate_or_none(other, case, question, redraw)
    if anew is None or modes.compilations() == compiled:
        return False
    return all(
        tensor is there if tensor is None or there is None else distance.same_bytes(tensor, there)
        for name, tensor in found.tensors.items()
        for there in [anew.tensors.get(name)]
    )


def _evaluate_or_none(
    session: CellSession, case: Case, question: Question, redraw: Redraw, *, refusable: bool = False
) -> Evaluation | None:
    """The evaluation; None if the mode or an exported program raises an error: it may say so that its shapes are fixed.

    None too if a changed module leaves the mode nothing to do, as a dropout does in eval mode.
    """
    try:
        return _evaluate(session, redraw, _ask(session, case, question, redraw))
    except errors.NotProvenError:
        if not redraw.changes_module:
            raise
    except Exception as problem:  # a mode may raise anything
        may_be_fixed = not session.is_eager or isinstance(session.eager, torch.fx.GraphModule)
        refusable = refusable or (redraw.text != cell.OTHER_WEIGHTS and may_be_fixed)
        if not refusable or error_text.is_out_of_memory(problem):
            raise
        session.note_refusal("with another order in memory" if redraw.reordered else redraw.text, problem)
    return None


def _ask(session: CellSession, case: Case, question: Question, redraw: Redraw) -> Question:
    return redraw.question(question, session.place(redraw.inputs(case, session.seed)), session.eager)


def _evaluate(session: CellSession, redraw: Redraw, asked: Question) -> Evaluation:
    """Evaluate with the parameters, buffers, attributes and mode of a draw, and set them back."""
    owner = session.made.parameters_of
    state, memory = weights.state_of(owner), ModuleMemory(owner)
    first = {name: state[name] for name in session.dtypes if name in state}  # a buffer that a call has made stays
    weights.reset(owner, redraw.state(first, session.seed))
    with attributes.restored(owner, dict(redraw.settings)):
        try:
            with session.around_calls():
                return evaluation.evaluate_orders(session.made.call, owner, asked)
        finally:
            weights.reset(owner, state)
            if redraw.training is not None:
                owner.train(not redraw.training)  # a module may do more for it than set a flag
                memory.restore()
                weights.reset(owner, state)

"""Makes the reference of a model: the oracle's tensors and their spread for each case, before any candidate runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from conformance.axes import Precision
from conformance.evaluate import inputs, weights
from conformance.evaluate.containers import NOTHING, Container, Pair
from conformance.evaluate.error_text import describe_error, is_out_of_memory
from conformance.evaluate.evaluation import Evaluation, Question
from conformance.float64.wide import Oracle, wide_call
from conformance.gates.budget import TensorReference
from conformance.oracle import sampling
from conformance.oracle.many_draws import FIRST_NUMBER, Redraw, with_redraws
from conformance.oracle.overflow import AMP_FP16, InnerGradients, Scale, choose_scale, scale_for
from conformance.oracle.selfcheck import SelfCheck
from conformance.oracle.spread import Spread
from conformance.perturb.kinks import KinkWatch
from conformance.process.forks import ALONE, Forks
from conformance.records.observation import TensorName
from zoo.case import Case, SpecError
from zoo.spec import Spec

FEWEST_ROWS = 3  # a batch of one is special to many models, so a batch must be left with two


@dataclass(frozen=True)
class CaseReference:
    """The reference of one case, made before any candidate runs.

    Attributes:
        picks: the draw of the inputs, or the rows of several draws.
        scale: the scale of the cotangents under float16, a power of two.
        tensors: the reference of each tensor, by name; None for a tensor that the oracle gave as None.
        requires_grad: `requires_grad` of every output tensor, by leaf; a number that is no tensor has none.
        container: the containers of the outputs.
        shared: the pairs of an output and an input, parameter, buffer or other output that share memory.
        drawn: what tells the random numbers that forward drew from others; "" if the spec declares none.
        redraws: the further draws over which low precisions are judged.
        changed: the references of the case with other weights, by the draw; only for precisions that round to float32.
        unchanged: why there is none with other weights, although float32 is judged; "" if there is one.
        assumed: facts without which its gradients are not the derivative: see `GradientCheck`.
    """

    picks: inputs.Picks
    scale: float
    tensors: dict[TensorName, TensorReference | None]
    requires_grad: dict[str, bool]
    container: Container = NOTHING
    shared: frozenset[Pair] = frozenset()
    drawn: str = ""
    redraws: tuple[Redraw, ...] = ()
    changed: tuple[tuple[Redraw, CaseReference], ...] = ()
    unchanged: str = ""
    assumed: tuple[str, ...] = ()


ANY_DRAW = CaseReference(0, 1.0, {}, {})  # for work that depends on shapes alone


def make(
    spec: Spec, twin: Spec | None, seed: int, precisions: list[Precision], forks: Forks = ALONE
) -> dict[str, CaseReference]:
    """Make the reference of a model, by case name.

    Args:
        spec: the spec of the model.
        twin: the spec of its twin, if it declares one.
        seed: seed of weights, inputs and cotangents.
        precisions: the precisions for which the perturbed runs are made.
        forks: the forks that may do a part of the work.

    Raises:
        NoOracleError, RandomError, SelfCheckError, SpecError: there is no oracle that can be trusted.
    """
    oracle = Oracle(spec, seed)
    _check_dtype(oracle)
    check = SelfCheck(oracle, twin)
    cases: dict[str, CaseReference] = {}
    smallest: tuple[float, Question, Evaluation] | None = None
    for case in spec.cases:
        picks = sampling.choose(oracle, case, forks)
        question = oracle.question(case, picks)
        inner = _inner_gradients(precisions)
        found, kinked = _watch(oracle, question, inner)
        check.of_outputs(question, found)
        scale = _scale(oracle, case, picks, found, inner)
        known = _of_one_draw(oracle, picks, question, found, precisions, forks, scale.factor, kinked=kinked)
        if spec.fit is None:
            oracle.kept = tables_of(oracle, question)
            redraws, tensors = with_redraws(oracle, case, question, known.tensors, precisions, scale, forks)
            fine = [p for p in precisions if not p.low_dtype]
            changed, reason = _with_changed_weights(oracle, case, question, fine, forks)
            known = replace(known, redraws=redraws, tensors=tensors, changed=changed, unchanged=reason)
        cases[case.name] = known
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question, found)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        assumed = check.of_gradients(smallest[1], smallest[2], forks)
        cases = {name: replace(known, assumed=assumed) for name, known in cases.items()}
    return cases


def _check_dtype(oracle: Oracle) -> None:
    """Raise `SpecError` if the model is in half precision and its spec does not say so."""
    floating = {t.dtype for t in oracle.narrow_state.values() if inputs.is_rounded(t)}
    if oracle.spec.dtype == "float32" and len(floating) == 1 and floating <= {torch.float16, torch.bfloat16}:
        name = str(floating.pop()).removeprefix("torch.")
        raise SpecError(f"its parameters are in {name}, and its spec does not say dtype={name!r}")


def make_for_timing(
    spec: Spec, seed: int, precisions: list[Precision], forks: Forks = ALONE
) -> dict[str, CaseReference]:
    """The reference with which a timed call is compared: outputs and first derivatives of the first case.

    The oracle is not checked, because that of the spec's own cases has been.

    Args:
        spec: the spec of the model at the size that is timed.
        seed: seed of weights, inputs and cotangents.
        precisions: the precisions for which the perturbed runs are made.
        forks: the forks that may do a part of the work.

    Raises:
        NoOracleError, SpecError: the model does not run in float64.
    """
    oracle, case = Oracle(spec, seed), spec.cases[0]
    picks = sampling.choose(oracle, case, forks)
    question = replace(oracle.question(case, picks), second=False, stacked=None, forward_mode=False)
    inner = _inner_gradients(precisions)
    found, kinked = _watch(oracle, question, inner)
    scale = _scale(oracle, case, picks, found, inner)
    return {case.name: _of_one_draw(oracle, picks, question, found, precisions, forks, scale.factor, kinked=kinked)}


def _inner_gradients(precisions: Sequence[Precision]) -> InnerGradients | None:
    """The watch of the gradients inside a model; None if no precision scales them."""
    return InnerGradients() if AMP_FP16 in precisions else None


def _watch(oracle: Oracle, question: Question, inner: InnerGradients | None = None) -> tuple[Evaluation, bool]:
    """The oracle's evaluation, and whether an op with a kink ran."""
    with KinkWatch() as watch, inner or contextlib.nullcontext():
        found = oracle.evaluate(question, noted=True)
    return found, watch.kinked


def _scale(oracle: Oracle, case: Case, picks: inputs.Picks, found: Evaluation, inner: InnerGradients | None) -> Scale:
    """The scale of the cotangents under float16."""
    if inner is None:
        return Scale(scale_for(found.tensors), math.inf)
    return choose_scale(oracle, case, picks, found, inner.largest)


def _of_one_draw(  # noqa: PLR0913 -- all that is known of a draw
    oracle: Oracle,
    picks: inputs.Picks,
    question: Question,
    found: Evaluation,
    precisions: Sequence[Precision],
    forks: Forks,
    scale: float,
    *,
    kinked: bool,
) -> CaseReference:
    tensors = Spread(oracle, question, found, scale, kinked=kinked).references(precisions, forks)
    return CaseReference(picks, scale, tensors, found.requires_grad, found.container, found.shared, found.drawn)


def _with_changed_weights(
    oracle: Oracle, case: Case, question: Question, precisions: Sequence[Precision], forks: Forks
) -> tuple[tuple[tuple[Redraw, CaseReference], ...], str]:
    """The references of the case with other weights and full float32 operands, and why the first one is missing.

    If the spec has no other case, there is one more, with a row less and, if the model takes that, with the axes of
    its inputs in another order in memory. Low precisions are judged over many draws instead.
    """
    fresh = Oracle(oracle.spec, oracle.seed)  # it has seen no other weights
    redraws = [Redraw(FIRST_NUMBER - 1, weights=0, fine=True, kept=oracle.kept)]
    if len(oracle.spec.cases) == 1 and inputs.row_count(inputs.draw(case, oracle.seed, 0)) >= FEWEST_ROWS:
        redraws += [replace(redraws[0], fewer=True, reordered=reordered) for reordered in (True, False)]
    made: list[tuple[Redraw, CaseReference]] = []
    reason = ""
    for redraw in redraws:
        if made and made[-1][0].fewer:
            break
        there = fresh.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
        call = wide_call(redraw.inputs(case, oracle.seed))
        asked = replace(redraw.question(question, call, there.namer), second=False)
        try:
            found, kinked = _watch(there, asked)
            scale = scale_for(found.tensors)
            known = _of_one_draw(there, redraw.picks, asked, found, precisions, forks, scale, kinked=kinked)
            made.append((redraw, known))
        except Exception as problem:  # the model's own code may raise anything
            if is_out_of_memory(problem):
                raise
            if not redraw.fewer:
                reason = describe_error(problem)
    return tuple(made), reason


# Finds the buffers and frozen parameters that further draws leave as they are.

SAME = 1e-9  # of the size of an output


def tables_of(oracle: Oracle, question: Question) -> tuple[str, ...]:
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

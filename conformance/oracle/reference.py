"""Makes the reference of a model: the oracle's tensors and their spread for each case, before any candidate runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import torch

from conformance.axes import Precision
from conformance.derivatives.gradients import GradientCheck
from conformance.evaluate import attributes, containers, evaluation, inputs, weights
from conformance.evaluate.attributes import MISSING, States
from conformance.evaluate.error_text import blame_noise, describe_error, is_out_of_memory
from conformance.evaluate.evaluation import Evaluation, Question, Tensors
from conformance.float64 import replacements
from conformance.float64.wide import Oracle, prepared_model, wide_call
from conformance.gates import budget, compare, distance
from conformance.gates.budget import FLOAT32, NOISE, TensorReference
from conformance.oracle import draws, inference, selfcheck
from conformance.oracle.draws import FIRST_NUMBER, Redraw, with_redraws
from conformance.perturb import kinks, rounding
from conformance.process import memory
from conformance.process.forks import ALONE, Forks
from conformance.records.cell import TensorName
from zoo import Case, Spec, SpecError

OTHER = 1.125  # times a number in an attribute
FLOAT64_BYTES = 8
COPIES = 2  # of the weights: the gradients with other weights, and the model for these
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
        states: paths of the plain attributes on which the next call depends; see `find_states`.
        following: the reference of a second call, on another draw, in the state that the first one left; only for
            precisions that round to float32. None: a call leaves no state, or a second call raises an error.
        inferred: the references of the outputs that are others without gradients, by the dtype of the autocast, which
            is "" for none.
        changed: the references of the case with other weights, and with what else may change between calls, by the
            draw; only for precisions that round to float32.
        unchanged: why there is none with other weights, although float32 is judged; "" if there is one.
        unclaimed: what the transforms do that the spec does not claim, by name; of the first case alone.
        assumed: facts without which its gradients are not the derivative: see `GradientCheck`.
    """

    picks: inputs.Picks
    scale: float
    tensors: dict[TensorName, TensorReference | None]
    requires_grad: dict[str, bool]
    container: containers.Container = containers.NOTHING
    shared: frozenset[containers.Pair] = frozenset()
    drawn: str = ""
    redraws: tuple[Redraw, ...] = ()
    states: tuple[str, ...] = ()
    following: CaseReference | None = None
    inferred: dict[str, dict[TensorName, TensorReference]] = field(default_factory=dict)
    changed: tuple[tuple[Redraw, CaseReference], ...] = ()
    unchanged: str = ""
    unclaimed: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)

    def without_gradients(self, precision: Precision) -> CaseReference:
        """The reference of a call that runs without gradients."""
        return replace(self, tensors={**self.tensors, **self.inferred.get(precision.autocast, {})})

    def of_call(self, precision: Precision) -> CaseReference:
        """The reference of the call that a cell measures, which may run without gradients by itself."""
        return self if any(self.requires_grad.values()) else self.without_gradients(precision)


_References = dict[TensorName, TensorReference | None]

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
        MemoryError: it needs more memory than is free.
    """
    oracle = Oracle(spec, seed)
    _check_dtype(oracle)
    initial = attributes.read(oracle.model)
    cases: dict[str, CaseReference] = {}
    smallest: tuple[float, Question] | None = None
    for case in spec.cases:
        picks = draws.choose_picks(oracle, case, forks)
        question = oracle.question(case, picks)
        found, kinked, inner = _watch(oracle, question, precisions)
        memory.ensure_room(COPIES * sum(t.numel() * FLOAT64_BYTES for t in oracle.state.values()))
        if kept := {} if spec.fit else find_states(oracle, initial, case, question):
            question = replace(question, states=kept)
            found, kinked, inner = _watch(oracle, question, precisions)
        selfcheck.check_outputs(oracle, twin, question, found)
        scale = draws.choose_scale(oracle, case, picks, found, inner)
        known = Spread(oracle, question, found, scale.factor, kinked=kinked).reference(picks, precisions, forks)
        if case is spec.cases[0]:
            known = replace(known, unclaimed=selfcheck.try_unclaimed(oracle, case, picks, question, found))
        del found  # as large as the model
        if spec.fit is None:
            oracle.kept = tables_of(oracle, question)
            redraws, tensors = with_redraws(oracle, case, question, known.tensors, precisions, scale, forks)
            fine = [p for p in precisions if not p.low_dtype]
            changed, reason = _with_changes(oracle, case, question, fine, forks)
            known = replace(known, redraws=redraws, tensors=tensors, changed=changed, unchanged=reason)
            if kept:
                following = _follow_or_none(oracle, case, question, fine, forks) if fine else None
                if following is not None:
                    following = replace(following, tensors=_as_rounded(following.tensors, known.tensors))
                known = replace(known, states=tuple(kept), following=following)
        cases[case.name] = known
        size = sum(t.numel() for t in question.names.values() if isinstance(t, torch.Tensor))
        if size and (smallest is None or size < smallest[0]):
            smallest = (size, question)
    if spec.differentiable and spec.surrogate_gradient is None and smallest is not None:
        assumed = GradientCheck(oracle, smallest[1], oracle.evaluate(smallest[1]), forks).run()
        cases = {name: replace(known, assumed=assumed) for name, known in cases.items()}
    return cases


def _follow_or_none(
    oracle: Oracle, case: Case, question: Question, precisions: Sequence[Precision], forks: Forks
) -> CaseReference | None:
    """`_follow`, or None if the second call raises an error: another draw may have other shapes than the state."""
    try:
        return _follow(oracle, case, question, precisions, forks)
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        return None


def _follow(
    oracle: Oracle, case: Case, question: Question, precisions: Sequence[Precision], forks: Forks
) -> CaseReference:
    """The reference of a second call, on another draw, in the state that the first one left."""
    oracle.evaluate(replace(question, second=False, stacked=None, forward_mode=False))
    there, left = (
        oracle.starting_from(weights.state_of(oracle.model)),
        attributes.current(oracle.model, question.states),
    )
    asked = replace(other_question(oracle, case, question), states=left)
    found, kinked, _ = _watch(there, asked)
    spread = Spread(there, asked, found, draws.scale_for(found.tensors), kinked=kinked)
    return spread.reference(inputs.FAR_DRAW, precisions, forks)


def _as_rounded(following: _References, first: _References) -> _References:
    """The tensors after a second call. What the first one rounds, and the second one leaves alone, is not exact."""
    found = dict(following)
    for name, reference in following.items():
        one = first.get(name)
        if reference is not None and reference.exact and one is not None and one.oracle.is_rounded and not one.exact:
            found[name] = replace(reference, exact=False, spread=one.spread)
    return found


def _check_dtype(oracle: Oracle) -> None:
    """Raise `SpecError` if the model is in half precision and its spec does not say so."""
    floating = {t.dtype for t in oracle.state.values() if inputs.is_rounded(t)}
    if oracle.spec.dtype == "float32" and len(floating) == 1 and floating <= {torch.float16, torch.bfloat16}:
        name = str(floating.pop()).removeprefix("torch.")
        raise SpecError(f"its parameters are in {name}, and its spec does not say dtype={name!r}")


def make_for_timing(
    spec: Spec, seed: int, precisions: list[Precision], forks: Forks = ALONE
) -> dict[str, CaseReference]:
    """The reference with which a timed call is compared: outputs and first derivatives of the first case.

    The spec is that of the model at the size that is timed. The oracle is not checked, because that of the spec's own
    cases has been.

    Raises:
        NoOracleError, SpecError: the model does not run in float64.
    """
    oracle, case = Oracle(spec, seed), spec.cases[0]
    picks = draws.choose_picks(oracle, case, forks)
    question = replace(oracle.question(case, picks), second=False, stacked=None, forward_mode=False)
    found, kinked, inner = _watch(oracle, question, precisions)
    scale = draws.choose_scale(oracle, case, picks, found, inner)
    spread = Spread(oracle, question, found, scale.factor, kinked=kinked)
    return {case.name: spread.reference(picks, precisions, forks)}


def _watch(
    oracle: Oracle, question: Question, precisions: Sequence[Precision] = ()
) -> tuple[Evaluation, bool, float | None]:
    """The oracle's evaluation, whether an op with a kink ran, and the largest gradient inside the model.

    That gradient is None if no precision scales it.
    """
    inner = draws.InnerGradients() if draws.AMP_FP16 in precisions else None
    with kinks.KinkWatch() as watch, inner or contextlib.nullcontext():
        found = oracle.evaluate(question, noted=True)
    return found, watch.kinked, inner.largest if inner else None


def _with_changes(
    oracle: Oracle, case: Case, question: Question, precisions: Sequence[Precision], forks: Forks
) -> tuple[tuple[tuple[Redraw, CaseReference], ...], str]:
    """The references of the case with other weights and full float32 operands, and why the first one is missing.

    With these weights, more may change that people change between calls: see `_changes`. Low precisions are judged over
    many draws instead.
    """
    fresh = oracle.built_anew()
    plain = Redraw(FIRST_NUMBER - 1, weights=0, fine=True, kept=oracle.kept)
    there = fresh.starting_from(plain.state(oracle.state, oracle.seed))
    made: list[tuple[Redraw, CaseReference]] = []
    first: Question | None = None
    for alternatives in _changes(oracle, fresh, case, question, plain):
        for redraw in alternatives:
            call = wide_call(redraw.inputs(case, oracle.seed))
            asked = replace(redraw.question(question, call, there.namer), second=False)
            first = first or asked
            try:
                reference = _of_change(there, redraw, asked, first, precisions, forks)
                if reference is None:
                    continue
                if not redraw.changes_module or _holds_in_eager(oracle, case, question, redraw, reference):
                    made.append((redraw, reference))
                break
            except Exception as problem:  # the model's own code may raise anything
                if is_out_of_memory(problem):
                    raise
                if redraw is plain:
                    return (), describe_error(problem)
    return tuple(made), ""


def _of_change(  # noqa: PLR0913 -- all that is known of a change
    there: Oracle,
    redraw: Redraw,
    asked: Question,
    first: Question,
    precisions: Sequence[Precision],
    forks: Forks,
) -> CaseReference | None:
    """The reference of a change; None for one of the module that does not tell, beside the first of the changes."""
    found, kinked, _ = _watch(there, asked)
    if redraw.changes_module and not _is_telling(there, redraw, asked, found.tensors, first):
        return None
    spread = Spread(there, asked, found, draws.scale_for(found.tensors), kinked=kinked)
    return spread.reference(redraw.picks, precisions, forks)


def _changes(
    oracle: Oracle, fresh: Oracle, case: Case, question: Question, plain: Redraw
) -> Iterator[tuple[Redraw, ...]]:
    """What changes between calls; of alternatives, the first that the model takes.

    The rows change if the spec has no other case, and with them the order of the axes in memory. A module gets other
    numbers and flags in its attributes, and goes from train to eval mode or back.
    """
    yield (plain,)
    if len(oracle.spec.cases) == 1 and inputs.row_count(inputs.draw(case, oracle.seed, 0)) >= FEWEST_ROWS:
        yield replace(plain, rows=-1, reordered=True), replace(plain, rows=-1)
        yield (replace(plain, rows=1),)
    if replacements.has_graph(fresh.model) or not isinstance(fresh.model, torch.nn.Module):
        return
    fresh.forget()
    moved = {*attributes.differing(attributes.read(fresh.model), attributes.read(oracle.model)), *question.states}
    settings = {path: value for path, value in attributes.settings(fresh.model).items() if path not in moved}
    others = {path: not value if value is True or value is False else OTHER * value for path, value in settings.items()}
    numbers = {path: value for path, value in others.items() if isinstance(settings[path], float)}
    yield tuple(replace(plain, settings=tuple(some.items())) for some in (others, numbers) if some)
    yield (replace(plain, training=not fresh.model.training),)


def _is_telling(there: Oracle, redraw: Redraw, asked: Question, found: Tensors, first: Question) -> bool:
    """Whether a change of the module shows in what it gives.

    It does not if it brings random numbers that the spec does not declare. Nor may other numbers be set after the first
    call, if the model has made a table of them.
    """
    if all(same(t, found.get(name)) for name, t in there.evaluate(first).tensors.items()):
        return False
    with there.remembering() if redraw.settings else contextlib.nullcontext():
        return same_tensors(found, there.evaluate(asked).tensors)


def _holds_in_eager(oracle: Oracle, case: Case, question: Question, redraw: Redraw, known: CaseReference) -> bool:
    """Whether eager, built anew and changed in this way, agrees: a flag may choose a cast, which float64 leaves out."""
    model = prepared_model(oracle.spec, oracle.seed)
    weights.reset(model, redraw.state(weights.state_of(model), oracle.seed))
    plain = evaluation.question_of(oracle.spec, case, oracle.seed, redraw.picks, lambda call: call, model)
    asked = redraw.question(replace(plain, states=question.states), redraw.inputs(case, oracle.seed), model)
    found = evaluation.evaluate(model, model, replace(asked, second=False)).tensors
    for name, reference in known.tensors.items():
        if reference is not None and name.kind in ("output", "gradient"):
            asks: dict[str, Any] = {"dtype": "", "baseline": None, "accurate": False, "bitwise": False}
            criteria = budget.criteria_for(case.name, name, reference, FLOAT32, **asks)
            if not all(m.met for m in compare.compare_values(found.get(name), criteria, "").measures):
                return False
    return True


# Finds the buffers and frozen parameters that further draws leave as they are.


def tables_of(oracle: Oracle, question: Question) -> tuple[str, ...]:
    """The names of what is not drawn again, for the model makes tables of it and keeps them.

    These are the buffers that are not persistent, and what shares memory with another tensor. If the model's results do
    not follow its other buffers and its frozen parameters, because its first call has kept something, it is these too.
    What training changes is always drawn again: a model that keeps something of it is wrong.
    """
    tables = weights.not_persistent(oracle.model)
    trained = {name for name, parameter in weights.parameters_of(oracle.model).items() if parameter.requires_grad}
    fixed = {n for n, t in oracle.state.items() if inputs.is_rounded(t)} - trained - tables
    if not fixed:
        return tuple(sorted(tables | weights.sharing_memory(oracle.namer)))
    redraw = Redraw(0, weights=0, kept=tuple(trained | tables))
    asked = replace(question, differentiate=False, second=False, stacked=None, forward_mode=False)
    there = oracle.starting_from(redraw.state(oracle.state, oracle.seed))
    try:
        oracle.evaluate(asked)
        with there.remembering():
            remembered = there.evaluate(asked).tensors
        forgotten = there.evaluate(asked).tensors
        follows = same_tensors(forgotten, remembered)
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        follows = True  # where the draws fail, they say so
    return tuple(sorted((tables if follows else tables | fixed) | weights.sharing_memory(oracle.namer)))


# Measures how far the perturbed runs of one case stray from the oracle.

REMAINDER = 1 / 16  # of a tensor's norm: with a spread from here on in float32, it may be what cancellation leaves
WIDER = 2.0**16  # times as much noise tells, as much as bfloat16's
FAR = 64.0  # times a tensor's norm: noise of the terms that cancelled moves it farther; chaos was not seen to, by 8


@dataclass(frozen=True)
class _Seen:
    """What one perturbed run shows of a tensor.

    Attributes:
        far: how far it strays.
        lost: it has an infinity or NaN where the oracle has a number.
        same: it has the oracle's numbers.
        equal: of a tensor that is not rounded, which elements are the oracle's.
        strayed: of a rounded tensor at a low precision, the sums of its errors.
    """

    far: distance.Distance
    lost: bool
    same: bool
    equal: torch.Tensor | None
    strayed: distance.Sums | None


class Spread:
    """How far the perturbed runs of one case stray from `found`, which the oracle returned.

    Args:
        scale: the scale of the cotangents under float16.
        kinked: the model ran an op with a kink.
    """

    def __init__(self, oracle: Oracle, question: Question, found: Evaluation, scale: float, *, kinked: bool) -> None:
        self._oracle, self._question, self._found, self._kinked = oracle, question, found, kinked
        self._scale = scale
        self._measured = {name: distance.OracleTensor(t) for name, t in found.tensors.items() if t is not None}

    def reference(self, picks: inputs.Picks, precisions: Sequence[Precision], forks: Forks) -> CaseReference:
        """The reference of the case, for some precisions.

        The oracle runs again, several times, with the roundings of each precision perturbed. At a low precision
        there is a run that is rounded to nearest too: equal numbers have equal roundings, which do not average out over
        them as perturbations do.

        Raises:
            SpecError: a tensor changes its shape with rounding.
        """
        modes = [(precision, mode) for precision in precisions for mode in self._modes(precision)]
        runs = forks.results([partial(self._stray, precision, mode) for precision, mode in modes])
        by_precision = {
            precision.name: [run for run, (of, _) in zip(runs, modes, strict=True) if of is precision]
            for precision in precisions
        }
        known = {
            name: self._of_tensor(name, {word: [run[name] for run in seen] for word, seen in by_precision.items()})
            for name in self._measured
        }
        for name in self._remainders(known) if FLOAT32 in precisions else ():
            known[name] = replace(known[name], is_remainder=True)
        found, tensors = self._found, {name: known.get(name) for name in self._found.tensors}
        reference = CaseReference(
            picks, self._scale, tensors, found.requires_grad, found.container, found.shared, found.drawn
        )
        differs = any(found.requires_grad.values())  # then only what a cell infers in float32 does
        casts = sorted({p.autocast for p in precisions if not (differs and p.low_dtype)})
        others = {cast: inference.inferred(self._oracle, self._question, found, tensors, cast) for cast in casts}
        return replace(reference, inferred={cast: tensors for cast, tensors in others.items() if tensors})

    def _modes(self, precision: Precision) -> list[rounding.Rounding]:
        runs, noise = rounding.RUNS, NOISE
        if precision.is_low:
            runs, noise = (rounding.KINKED_RUNS, NOISE) if self._kinked else (runs, budget.SMOOTH_NOISE)
        modes = [self._perturbing(precision, run, noise) for run in range(runs)]
        return [*modes, *([rounding.Nearest(precision, self._scale)] if precision.low_dtype else [])]

    def _perturbing(self, precision: Precision, run: object, noise: float) -> rounding.Rounding:
        generator = inputs.seed_generator("probe", *self._question.seed, precision.name, run)
        return rounding.Rounding(precision, generator, noise, self._scale)

    def _stray(self, precision: Precision, mode: rounding.Rounding) -> dict[TensorName, _Seen]:
        """What one run shows of each tensor."""
        seen = {}
        with blame_noise(str(self._question.seed[-1]), precision):
            perturbed = self._oracle.evaluate(self._question, mode).tensors
        for name, measured in self._measured.items():
            tensor, truth = perturbed.get(name), measured.raw
            if tensor is None or tuple(tensor.shape) != measured.shape:
                raise SpecError(f"case {self._question.seed[-1]}: {name} changes shape with rounding")
            summed = precision.low_dtype and measured.is_rounded
            seen[name] = _Seen(
                measured.distance(tensor),
                not measured.stays_finite(tensor),
                _same_numbers(tensor, measured),
                None if measured.is_rounded else tensor == truth,
                distance.sums_of([distance.sample(tensor)], [distance.sample(truth)]) if summed else None,
            )
        return seen

    def _of_tensor(self, name: TensorName, runs: dict[str, list[_Seen]]) -> TensorReference:
        """What the runs show of a tensor, by precision name."""
        measured = self._measured[name]
        spread, settled, strayed = {}, {}, {}
        for word, seen in runs.items():
            if 2 * sum(run.lost for run in seen) > len(seen):  # rounding decides whether there is a number
                spread[word] = measured.without_bound()
            else:
                spread[word] = distance.farthest([run.far for run in seen])
            if equal := [run.equal for run in seen if run.equal is not None]:
                settled[word] = reduce(torch.logical_and, equal)
            if summed := [run.strayed for run in seen if run.strayed is not None]:
                strayed[word] = distance.farthest_sums(summed)
        exact = all(run.same for seen in runs.values() for run in seen)
        scale = self._scale if name.is_gradient else 1.0
        return TensorReference(measured, spread, exact, settled, self._kinked, scale, strayed)

    def _remainders(self, known: dict[TensorName, TensorReference]) -> list[TensorName]:
        """The gradients that are what is left where larger terms cancel.

        An example is the weight of a batch norm before another one: but for the eps of the second, its gradient is
        zero, and most of what float32 holds of it is noise of the terms that cancelled. Wider noise moves it by many
        times its own size. The gradients of a chaotic model have as much noise in float32, but wider noise moves them
        by a few times their size at most. Of an output, nobody wants only the size: it stays without power.
        """
        gradients = {name: reference for name, reference in known.items() if name.is_gradient}
        strayed = {name: (one.spread[FLOAT32.name].absolute, one.oracle.norm) for name, one in gradients.items()}
        near = [name for name, (far, norm) in strayed.items() if REMAINDER * norm <= far < budget.NOISY * norm]
        if not near:
            return []
        seen = self._stray(FLOAT32, self._perturbing(FLOAT32, "wider", WIDER * NOISE))
        far = [name for name in near if seen[name].far.absolute >= FAR * known[name].oracle.norm]
        return [name for name in far if not seen[name].lost]


def _same_numbers(a: torch.Tensor, truth: distance.OracleTensor) -> bool:
    """Whether a tensor has the oracle's shape and numbers, where NaN equals NaN and a zero has no sign."""
    b = truth.raw
    if truth.all_finite or a.dtype != b.dtype:
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


# Finds the plain attributes on which the next call of a model depends: counters, hidden states, largest values so far.
# What a first call computes of the weights and keeps, a table, is none: the next call gives the same without it.

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
        oracle.forget()
        attributes.put(oracle.model, {path: initial.get(path, MISSING) for path in changed})
        again, at_again = oracle.evaluate(asked).tensors, attributes.read(oracle.model)
    except Exception as problem:  # the model's own code may raise anything
        if is_out_of_memory(problem):
            raise
        return {path: initial.get(path, MISSING) for path in changed}
    if same_tensors(first, again):  # what differs all the same is a clock or a version, on which no result depends
        changed = [path for path in changed if path not in attributes.differing(at_first, at_again)]
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

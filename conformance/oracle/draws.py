"""Draws the cases: inputs away from kinks, the scale of their cotangents, and the same again with other weights.

With that scale, no gradient inside a model overflows float16, as under a GradScaler.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from conformance.axes import PRECISIONS, Precision
from conformance.errors import SelfCheckError
from conformance.evaluate import backward, custom_ops, error_text, evaluation, inputs, weights
from conformance.float64.wide import Oracle, prepared_model, wide_call
from conformance.gates import budget, distance
from conformance.perturb import kinks, rounding
from conformance.perturb.rounding import RUNS, Rounding
from conformance.process.forks import ALONE, Forks
from conformance.records.cell import FEWER_ROWS, MORE_ROWS, OTHER_SETTINGS, OTHER_WEIGHTS, TensorName
from zoo.case import Call, Case

AMP_FP16 = PRECISIONS["amp_fp16"]


class InnerGradients(custom_ops.OpMode):
    """Notes the largest gradient that an op of the judge's backward gives.

    Attributes:
        largest: its absolute value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen op, and note what it gives in backward."""
        result = func(*args, **kwargs)
        if not func.is_view and backward.is_scaled():
            with custom_ops.Unwatched():
                for leaf in custom_ops.leaves_of(result):
                    if inputs.is_rounded(leaf) and leaf.numel():
                        self.largest = max(self.largest, float(leaf.abs().nan_to_num(0.0, posinf=0.0).amax()))
        return result


def choose_scale(
    oracle: Oracle, case: Case, picks: inputs.Picks, found: evaluation.Evaluation, inner: float | None
) -> Scale:
    """The scale of a case: that of its gradients, lowered if eager's overflow with it under float16 autocast.

    `inner` is the largest gradient inside the model; None if no precision scales it.
    """
    scale = scale_for(found.tensors)
    if inner is None:
        return Scale(scale, math.inf)
    if scale * inner <= LARGEST / LARGER or oracle.spec.fit is not None:
        return Scale(scale, LARGEST / scale)
    finite = _Eager(oracle, case, picks, found).has_finite_gradients
    if finite(max(scale, 2.0 ** math.ceil(math.log2(2.0 * LARGEST / inner)))):
        return Scale(scale, math.inf)  # float16 does not hold these
    lower = scale
    while lower >= LEAST and not finite(lower):
        lower /= LARGER
    if lower < LEAST:
        lower = scale  # they overflow with any
    elif lower < scale:
        lower = max(LEAST, lower / LARGER)  # room for further draws
    return Scale(lower, LARGEST / lower)


class _Eager:
    """The model under float16 autocast on the CPU."""

    def __init__(self, oracle: Oracle, case: Case, picks: inputs.Picks, found: evaluation.Evaluation) -> None:
        self._model, self._truths = prepared_model(oracle.spec, oracle.seed), found.tensors
        question = evaluation.question_of(oracle.spec, case, oracle.seed, picks, lambda call: call, self._model)
        self._question = replace(question, second=False, stacked=None, forward_mode=False, precision=AMP_FP16)
        self._state = weights.state_of(self._model)

    def has_finite_gradients(self, scale: float) -> bool:
        """Whether its results are finite where the oracle's are; True if it raises an error, which the cells tell."""
        try:
            found = evaluation.evaluate(self._model, self._model, replace(self._question, scale=scale)).tensors
        except Exception as problem:  # the model's own code may raise anything
            if error_text.is_out_of_memory(problem):
                raise
            return True
        weights.reset(self._model, self._state)
        return all(_as_finite(tensor, found.get(name)) for name, tensor in self._truths.items())


def _as_finite(truth: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    if truth is None or tensor is None or truth.shape != tensor.shape or not inputs.is_rounded(tensor):
        return True
    return bool(tensor.isfinite()[truth.isfinite()].all())


# Chooses the scale of the cotangents under float16, as a GradScaler does: gradients neither vanish nor overflow.
#
# The scale of a case follows from its first draw, and a further draw may have larger gradients.

COTANGENT = 4.0  # random cotangents are hardly ever larger
HEADROOM = 2.0**12  # the largest scaled gradient, well inside float16's range of 2^16
LEAST = 2.0**-10
LARGEST = 2.0**16  # no number of float16 is larger
LARGER = 4.0  # how many times as large the gradients of a further draw may be


def scale_for(tensors: Mapping[TensorName, torch.Tensor | None]) -> float:
    """The largest power of two with which the scaled gradients stay within `HEADROOM`, but at least `LEAST`."""
    largest = COTANGENT
    for name, tensor in tensors.items():
        if name.is_gradient and tensor is not None and tensor.numel():
            largest = max(largest, float(tensor.abs().nan_to_num(0.0, posinf=0.0).amax()))
    return max(LEAST, float(2.0 ** math.floor(math.log2(HEADROOM / largest))))


@dataclass(frozen=True)
class Scale:
    """The scale of the cotangents, and the draws for which it will do.

    Attributes:
        factor: a power of two.
        inner: the largest gradient inside the model that float16 may have to hold.
    """

    factor: float
    inner: float

    def fits(self, tensors: Mapping[TensorName, torch.Tensor | None], inner: float) -> bool:
        """Whether the gradients of a further draw stay well inside float16's range, also those inside the model."""
        return inner <= self.inner and self.factor <= LARGER * scale_for(tensors)


# Chooses the inputs of a case away from kinks, where a gradient jumps and has no single right value.

REDRAWS = 4  # draws of a case to try until float32's rounding flips no unit
BATCHES = 16  # draws to pick rows from that stay away from kinks
JUMP = 2.0**-14  # of a gradient: numbers that go to the other side of a kink change it by more
FAINT = 2.0**-20  # of the largest gradient: smaller ones are what cancellation leaves
FEW = 2.0**-12  # of the numbers that go through ops with kinks: if no more are on one, each weighs little


def choose_picks(oracle: Oracle, case: Case, forks: Forks = ALONE) -> inputs.Picks:
    """Choose the draw of a case to use; if its samples are independent, the rows of several draws.

    A training takes the first draw, because it passes kinks at every step, and its loss curve does not jump there.

    Raises:
        SelfCheckError: in every draw, more than a few numbers are exactly on a kink, and rounding moves them off.
        NoOracleError, SpecError: the model does not run in float64, or not at all.
    """
    if oracle.spec.fit is not None:
        return 0
    if case.independent_samples:
        return _rows_off_the_kinks(oracle, case)
    return _draw_off_the_kinks(oracle, case, forks)


def _rows_off_the_kinks(oracle: Oracle, case: Case) -> inputs.Picks:
    """The (draw, row) pairs that keep the margin; if there are too few, also those that come closest to it."""
    candidates: list[tuple[float, int, int]] = []
    rows = 0
    for draw in range(BATCHES):
        number, _, watch = _untie(oracle, case, draw, by_row=True)
        rows = len(watch.margins)
        if not watch.kinked or not rows:
            return number
        candidates += [(min(m, kinks.MARGIN), number, row) for row, m in enumerate(watch.margins.tolist())]
        if sum(margin >= kinks.MARGIN for margin, _, _ in candidates) >= rows:
            break
    best = sorted(candidates, key=lambda c: -c[0])[:rows]
    return [(draw, row) for _, draw, row in best]


def _draw_off_the_kinks(oracle: Oracle, case: Case, forks: Forks) -> inputs.Picks:
    """The first of a few draws without a tie in which float32's rounding flips no unit, or the one with the fewest.

    A few numbers that are on a kink and rounding moves off are better avoided; a weight may put one there in each draw.
    """
    counts: list[tuple[int, int, int, int]] = []
    for draw in range(REDRAWS):
        number, ties, watch = _untie(oracle, case, draw)
        flips, tosses = _count_moved(oracle, case, number, watch, forks) if watch.kinked else (0, 0)
        if not ties and not flips:
            return number
        if tosses <= RUNS * FEW * sum(on_kinks.numel() for on_kinks in watch.ties):
            counts.append((tosses, ties, flips, number))
        elif not _jumps(oracle, case, number):
            counts.append((0, ties, flips, number))
    if not counts:
        raise SelfCheckError(
            f"case {case.name}: numbers sit exactly on a kink (relu, abs, clamp) but for rounding, so their "
            "gradients are a coin toss even in float64; move the inputs off the tie"
        )
    return min(counts)[-1]


def _count_moved(oracle: Oracle, case: Case, number: int, watch: kinks.KinkWatch, forks: Forks) -> tuple[int, int]:
    """How many units float32's rounding flips in a draw, and how many it moves off a kink."""
    call = inputs.draw_batch(case, oracle.seed, number)

    def moved(run: int) -> tuple[int, int]:
        perturbed = kinks.KinkWatch()
        with error_text.blame_noise(case.name, budget.FLOAT32), _noise(oracle, case, number, run), perturbed:
            oracle.forward(case, call)
        return kinks.count_flipped(watch, perturbed), kinks.count_tossed(watch, perturbed)

    flips, tosses = zip(*forks.results([partial(moved, run) for run in range(RUNS)]), strict=True)
    return sum(flips), sum(tosses)


def _jumps(oracle: Oracle, case: Case, number: int) -> bool:
    """Whether a gradient changes where rounding moves numbers of a draw off a kink, in the same runs.

    It does not if both sides have the same slope: between its limits, min(x, clamp(x)) is x on either side.
    """
    question = oracle.question(case, number)
    truth = oracle.evaluate(question).tensors
    gradients = {name: distance.OracleTensor(t) for name, t in truth.items() if t is not None and name.is_gradient}
    faint = FAINT * max((measured.norm for measured in gradients.values()), default=0.0)
    for run in range(RUNS):
        with error_text.blame_noise(case.name, budget.FLOAT32):
            moved = oracle.evaluate(question, _noise(oracle, case, number, run)).tensors
        for name, measured in gradients.items():
            other, most = moved[name], max(JUMP * measured.norm, faint)
            if other is None or not measured.distance(other).absolute <= most:
                return True
    return False


def _noise(oracle: Oracle, case: Case, number: int, run: int) -> Rounding:
    """The noise of float32 in one of the runs of a draw."""
    return Rounding(budget.FLOAT32, inputs.seed_generator("kink", oracle.seed, case.name, number, run))


def _untie(oracle: Oracle, case: Case, draw: int, *, by_row: bool = False) -> tuple[int, int, kinks.KinkWatch]:
    """A draw, moved apart if rounding its inputs has put numbers on a kink or made rivals equal.

    Returns:
        The number of the draw, how many such ties are left, and the watch of its run.
    """
    watch = _watch(oracle, case, inputs.draw_batch(case, oracle.seed, draw), by_row=by_row)
    if not any(bool(tie.any()) for tie in (*watch.ties, *watch.equals)):
        return draw, 0, watch
    drawn = _watch(oracle, case, inputs.raw_batch(case, oracle.seed, draw))
    best = (kinks.count_merged(watch, drawn), draw, watch)
    for way in range(1, len(inputs.AXES) + 1):
        if not best[0]:
            break
        number = draw + way * inputs.APART
        watch = _watch(oracle, case, inputs.draw_batch(case, oracle.seed, number), by_row=by_row)
        best = min(best, (kinks.count_merged(watch, drawn), number, watch), key=lambda found: found[0])
    return best[1], best[0], best[2]


def _watch(oracle: Oracle, case: Case, call: Call, *, by_row: bool = False) -> kinks.KinkWatch:
    watch = kinks.KinkWatch(inputs.row_count(call) if by_row else 0, selections=True)
    with watch:
        oracle.forward(case, call)
    return watch


# Draws a case again with other weights, runs the oracle there, and adds what its rounded runs add up to.

# Draws that are run rounded too; from these follows how many the tensors need. Behind a kink, and where numbers
# underflow, all draws are: what is lost there differs from draw to draw.
ROUNDED_RUNS = 4
DRAWS = (4, 8, 16)  # as many as are enough for every tensor, or the most
ENOUGH = 0.008  # the gain that a tensor should be judged to: a factor of 1.01 is red then
POOL = 4  # batches from which the rows of one draw are picked
REDRAWN_BATCHES = 8  # of which one is taken, if a draw takes a batch whole
CROWDED = 2.0**-11  # closer to a kink than this, in units of the rms: among so many units, each weighs little

References = dict[TensorName, budget.TensorReference | None]
Kept = dict[TensorName, torch.Tensor]


def with_redraws(  # noqa: PLR0913 -- all that is known of a case
    oracle: Oracle,
    case: Case,
    question: evaluation.Question,
    tensors: References,
    precisions: Sequence[Precision],
    scale: Scale,
    forks: Forks,
) -> tuple[tuple[Redraw, ...], References]:
    """The further draws of a case, and its references with what the rounded runs add up to in these draws.

    Only low precisions are judged over draws. `question` is that of the first draw.
    """
    low = [p for p in precisions if p.low_dtype]
    judged = {name: r for name, r in tensors.items() if r is not None and is_judged_over_draws(r)}
    if not low or not judged:
        return (), tensors
    kinked = any(r.kinked for r in judged.values())
    draws = _ManyDraws(judged, low, scale)
    first, numbers = inputs.draw(case, oracle.seed, 0), iter(range(max(DRAWS)))

    def run(number: int) -> _Run | None:
        start = FIRST_NUMBER + POOL * number
        redraw = Redraw(start, weights=number + 1, kept=oracle.kept)
        there = oracle.starting_from(redraw.state(oracle.state, oracle.seed))
        if not inputs.alike(first, redraw.inputs(case, oracle.seed)):
            return None
        if kinked and case.independent_samples:
            redraw = replace(redraw, picks=_farthest_rows(there, case, range(start, start + POOL)))
        elif kinked:
            apart = POOL * max(DRAWS)  # no other draw tries these
            tried = range(start, start + REDRAWN_BATCHES * apart, apart)
            redraw = replace(redraw, picks=_batch_off_the_kinks(there, case, redraw, tried))
        return draws.run(there, case, question, redraw)

    def add_up_to(wanted: int) -> None:
        while missing := [*islice(numbers, max(0, wanted - len(draws.redraws)))]:
            draws.add(forks.results([partial(run, number) for number in missing]))

    add_up_to(min(DRAWS))
    if len(draws.redraws) == min(DRAWS):
        add_up_to(max(draws.count_needed().values()))
    return tuple(draws.redraws), {**tensors, **draws.references()}


def is_judged_over_draws(reference: budget.TensorReference) -> bool:
    """Whether roundings of a tensor can average out: it has some, and it is not structurally zero."""
    oracle = reference.oracle
    return bool(oracle.reals.numel()) and oracle.is_rounded and not reference.exact and not reference.is_null


def _batch_off_the_kinks(there: Oracle, case: Case, redraw: Redraw, numbers: range) -> inputs.Picks:
    """The batch that is farthest from kinks, of some that are like the first of them.

    One unit among few that a mode flips, and the rounded run does not, outweighs the roundings of all draws. Among
    many units, some are always near a kink, and the first batches show it.
    """
    first = redraw.inputs(case, there.seed)
    candidates: list[tuple[float, int]] = []
    for number in numbers:
        call = inputs.draw_batch(case, there.seed, number)
        if not inputs.alike(first, call):
            continue
        with kinks.KinkWatch() as watch:
            there.forward(case, call)
        candidates.append((watch.margin, -number))
        farthest = max(candidates)[0]
        if farthest >= kinks.MARGIN or (len(candidates) > 1 and farthest < CROWDED):
            break
    return -max(candidates)[1]


def _farthest_rows(there: Oracle, case: Case, numbers: range) -> inputs.Picks:
    """The rows of some batches that are farthest from kinks, up to `MARGIN`."""
    candidates: list[tuple[float, int, int]] = []
    rows = 0
    for number in numbers:
        call = inputs.draw_batch(case, there.seed, number)
        rows = inputs.row_count(call)
        with kinks.KinkWatch(rows) as watch:
            there.forward(case, call)
        candidates += [(-min(m, kinks.MARGIN), number, row) for row, m in enumerate(watch.margins.tolist())]
    return [(number, row) for _, number, row in sorted(candidates)[:rows]]


@dataclass(frozen=True)
class _Run:
    """What the oracle gave in one draw.

    Attributes:
        redraw: the draw.
        truth: what is kept of its tensors, by name.
        rounded: the same of the rounded runs, by precision name.
        constants: see `Nearest`; by precision name.
    """

    redraw: Redraw
    truth: Kept
    rounded: dict[str, Kept]
    constants: dict[str, float]


class _ManyDraws:
    """Collects the oracle's tensors in each draw, and those of the rounded runs.

    Attributes:
        redraws: the draws so far.
    """

    def __init__(
        self,
        judged: dict[TensorName, budget.TensorReference],
        precisions: Sequence[Precision],
        scale: Scale,
    ) -> None:
        self.redraws: list[Redraw] = []
        self._scale = scale
        self._judged, self._precisions = dict(judged), precisions
        self._constants = {p.name: 0.0 for p in precisions}
        self._truths: dict[TensorName, list[torch.Tensor]] = {name: [] for name in judged}
        keys = ((precision.name, name) for precision in precisions for name in judged)
        self._found: dict[tuple[str, TensorName], list[torch.Tensor]] = {key: [] for key in keys}

    def run(self, there: Oracle, case: Case, question: evaluation.Question, redraw: Redraw) -> _Run | None:
        """Run the oracle with the weights of one more draw on it, and rounded too.

        None for a draw that fails, and for one whose gradients float16 may not hold.
        """
        asked = redraw.question(question, wide_call(redraw.inputs(case, there.seed)), there.namer)
        modes = {p.name: rounding.Nearest(p, self._scale.factor) for p in self._precisions}
        try:
            inner = InnerGradients()  # which costs time in every op
            with inner if math.isfinite(self._scale.inner) else contextlib.nullcontext():
                truth = there.evaluate(asked).tensors
            if not self._scale.fits(truth, inner.largest):
                return None
            narrow = {n: t.to(torch.float32) for n, t in self._keep(truth).items()}
            del truth  # as large as the model
            rounded = {word: self._keep(there.evaluate(asked, mode).tensors) for word, mode in modes.items()}
        except Exception as problem:  # the model's own code may raise anything
            if error_text.is_out_of_memory(problem):
                raise
            return None
        return _Run(redraw, narrow, rounded, {word: mode.constant for word, mode in modes.items()})

    def add(self, runs: Sequence[_Run | None]) -> None:
        """Add what the runs of some draws gave."""
        for run in (run for run in runs if run is not None):
            self.redraws.append(run.redraw)
            for word, constant in run.constants.items():
                self._constants[word] = max(self._constants[word], constant)
            for name in list(self._judged):
                if not all(name in tensors for tensors in (run.truth, *run.rounded.values())):
                    del self._judged[name]
                    continue
                self._truths[name].append(run.truth[name])
                for word, tensors in run.rounded.items():
                    self._found[word, name].append(tensors[name])

    def _keep(self, run: evaluation.Tensors) -> Kept:
        """What is kept of each judged tensor of a run, if it has the shape that it had in the first draw."""
        found = ((name, run.get(name), known) for name, known in self._judged.items())
        return {
            name: distance.sample(t)
            for name, t, known in found
            if t is not None and tuple(t.shape) == known.oracle.shape
        }

    def _add_up(self, name: TensorName, precision: Precision, draws: int = max(DRAWS)) -> distance.Rounded:
        found = self._found[precision.name, name][:draws]
        return distance.rounded_sums(found, self._truths[name][: len(found)], self._constants[precision.name])

    def count_needed(self) -> dict[str, int]:
        """How many draws each precision needs, so that the gain of every tensor is judged finely enough."""
        return {p.name: max((self._needs(name, p) for name in self._judged), default=0) for p in self._precisions}

    def _needs(self, name: TensorName, precision: Precision) -> int:
        rounded, reference = self._add_up(name, precision), self._judged[name]
        for draws in DRAWS:
            more = rounded.over(draws)
            if float(budget.budgets_over_draws(reference, precision, more).gain[0]) <= ENOUGH * float(more.squares[0]):
                return draws
        return max(DRAWS)

    def references(self) -> dict[TensorName, budget.TensorReference]:
        """The references of the tensors that every draw has, with their redraws."""
        if not self.redraws:
            return {}
        draws = {precision: min(count, len(self.redraws)) for precision, count in self.count_needed().items()}
        with_redraws = {}
        for name, reference in self._judged.items():
            rounded = {p.name: self._add_up(name, p, draws[p.name]) for p in self._precisions}
            with_redraws[name] = replace(reference, redraws=distance.Redraws(tuple(self._truths[name]), rounded))
        return with_redraws


# Parameters and buffers are changed in place, as an optimiser does. A mode that kept their old values is wrong then.

FIRST_NUMBER = 64  # of the draws; the numbers below are those from which the first inputs of a case are chosen
SMALLEST_FACTOR = 0.5  # of a weight; all factors are below 1, so that no error of the old weights averages out
SMALLEST_COARSE_FACTOR = 0.875  # where float16 has to hold what forty layers of such weights leave


@dataclass(frozen=True)
class Redraw:
    """A further draw of a case.

    Attributes:
        picks: the draw of the inputs, or the rows of several draws.
        weights: seed of the factors of the weights.
        fine: inputs and weights are any numbers of float32, not only those that low precisions represent.
        rows: how many rows more than the case every input has: -1, 0 or 1.
        reordered: the inputs lie in memory with their first axis as the fastest.
        kept: names of buffers and frozen parameters that stay, because the model keeps what it computes of them.
        training: whether the module is in train mode; None: it stays in the mode in which it is built.
        settings: other values of plain attributes of the module, by path.
    """

    picks: inputs.Picks
    weights: int
    fine: bool = False
    rows: int = 0
    reordered: bool = False
    kept: tuple[str, ...] = ()
    training: bool | None = None
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def changes_module(self) -> bool:
        """Whether more of the module changes than its weights."""
        return self.training is not None or bool(self.settings)

    @property
    def text(self) -> str:
        """What a report says of it, after the name of the case."""
        if self.rows:
            return MORE_ROWS if self.rows > 0 else FEWER_ROWS
        if self.training is not None:
            return f"in {'train' if self.training else 'eval'} mode"
        return OTHER_SETTINGS if self.settings else OTHER_WEIGHTS

    def inputs(self, case: Case, seed: int) -> Call:
        """The inputs, on the CPU.

        Raises:
            SpecError: see `Case.draw`.
        """
        call = inputs.draw(case, seed, self.picks, coarse=not self.fine)
        if self.rows < 0:
            call = inputs.fewer_rows(call)
        elif self.rows:
            call = inputs.more_rows(call, inputs.draw(case, seed, inputs.FAR_DRAW, coarse=not self.fine))
        return inputs.reorder(call) if self.reordered else call

    def state(self, state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """The parameters and buffers for this draw, from those of the first, which float32 represents."""
        drawn = {n: t for n, t in state.items() if inputs.is_rounded(t) and n not in self.kept}
        reals = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in drawn.items()}
        if not reals:
            return state
        flat = torch.cat([self._times_factors(name, tensor, seed) for name, tensor in reals.items()]).float()
        for part in () if self.fine else flat.split(distance.BLOCK):  # of all together: most tensors are small
            part.copy_(inputs.representable(part))
        changed = dict(state)
        for name, part in zip(reals, flat.split([tensor.numel() for tensor in reals.values()]), strict=True):
            real = part.view(reals[name].shape).to(reals[name].dtype)
            changed[name] = torch.view_as_complex(real.clone()) if state[name].is_complex() else real
        return changed

    def _times_factors(self, name: str, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        generator = inputs.seed_generator("weights", seed, self.weights, name)
        factors = torch.rand(tensor.numel(), generator=generator).to(tensor.device)
        least = SMALLEST_FACTOR if self.fine else SMALLEST_COARSE_FACTOR
        return tensor.reshape(-1) * factors.mul_(1.0 - least).add_(least)

    def question(self, first: evaluation.Question, call: Call, model: Any) -> evaluation.Question:
        """The question of this draw, with inputs on the device and in the dtypes of the run."""
        names = inputs.named_inputs(model, call)
        pristine = inputs.place(call, convert=lambda t: t) if first.mutates else call
        again = (*first.seed, repr(self.picks), self.weights, self.rows)
        first = replace(first, stacked=None, forward_mode=False)  # the first draw checks these
        states = {**first.states, **dict(self.settings)}
        moved = replace(first, training=self.training, states=states)
        return replace(moved, call=call, pristine=pristine, names=names, seed=again)

"""Draws a case again with other weights, runs the oracle there, and adds what its rounded runs add up to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from conformance.axes import Precision
from conformance.evaluate import error_text, evaluation, inputs
from conformance.float64.wide import Oracle, wide_call
from conformance.gates import budget, redraws, sums
from conformance.oracle.overflow import InnerGradients, Scale
from conformance.perturb import kinks, rounding
from conformance.process.forks import Forks
from conformance.records.cell import TensorName
from zoo.case import Call, Case

# Draws that are run rounded too; from these follows how many the tensors need. Behind a kink, and where numbers
# underflow, all draws are: what is lost there differs from draw to draw.
ROUNDED_RUNS = 4
DRAWS = (4, 8, 16)  # as many as are enough for every tensor, or the most
ENOUGH = 0.008  # the gain that a tensor should be judged to: a factor of 1.01 is red then
POOL = 4  # batches from which the rows of one draw are picked
BATCHES = 8  # of which one is taken, if a draw takes a batch whole
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
    draws = _ManyDraws(judged, low, scale, rounded_runs=max(DRAWS) if kinked else ROUNDED_RUNS)
    first, numbers = inputs.draw(case, oracle.seed, 0), iter(range(max(DRAWS)))

    def run(number: int) -> _Run | None:
        start = FIRST_NUMBER + POOL * number
        redraw = Redraw(start, weights=number + 1, kept=oracle.kept)
        there = oracle.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
        if not inputs.alike(first, redraw.inputs(case, oracle.seed)):
            return None
        if kinked and case.independent_samples:
            redraw = replace(redraw, picks=_rows_off_the_kinks(there, case, range(start, start + POOL)))
        elif kinked:
            apart = POOL * max(DRAWS)  # no other draw tries these
            tried = range(start, start + BATCHES * apart, apart)
            redraw = replace(redraw, picks=_batch_off_the_kinks(there, case, redraw, tried))
        return draws.run(there, case, question, redraw)

    def add_up_to(wanted: int) -> None:
        while missing := [*islice(numbers, max(0, wanted - len(draws.redraws)))]:
            draws.add(forks.results([partial(run, number) for number in missing]))

    add_up_to(ROUNDED_RUNS)
    if len(draws.redraws) == ROUNDED_RUNS:
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


def _rows_off_the_kinks(there: Oracle, case: Case, numbers: range) -> inputs.Picks:
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
        rounded: the same of the rounded runs, by precision name; empty if there was none.
        underflew: see `Nearest`.
        constants: the same, by precision name.
    """

    redraw: Redraw
    truth: Kept
    rounded: dict[str, Kept]
    underflew: bool
    constants: dict[str, float]


class _ManyDraws:
    """Collects the oracle's tensors in each draw, and those of the rounded runs in the first draws.

    Attributes:
        redraws: the draws so far.
    """

    def __init__(
        self,
        judged: dict[TensorName, budget.TensorReference],
        precisions: Sequence[Precision],
        scale: Scale,
        *,
        rounded_runs: int,
    ) -> None:
        self.redraws: list[Redraw] = []
        self._scale, self._rounded_runs = scale, rounded_runs
        self._judged, self._precisions = dict(judged), precisions
        self._constants = {p.name: 0.0 for p in precisions}
        self._truths: dict[TensorName, list[torch.Tensor]] = {name: [] for name in judged}
        keys = ((precision.name, name) for precision in precisions for name in judged)
        self._found: dict[tuple[str, TensorName], list[torch.Tensor]] = {key: [] for key in keys}

    def run(self, there: Oracle, case: Case, question: evaluation.Question, redraw: Redraw) -> _Run | None:
        """Run the oracle with the weights of one more draw on it, and rounded too if it is one of the first.

        None for a draw that fails, and for one whose gradients float16 may not hold.
        """
        asked = redraw.question(question, wide_call(redraw.inputs(case, there.seed)), there.namer)
        rounded_to = self._precisions if len(self.redraws) < self._rounded_runs else ()
        modes = {p.name: rounding.Nearest(p, self._scale.factor) for p in rounded_to}
        try:
            inner = InnerGradients()  # which costs time in every op
            with inner if math.isfinite(self._scale.inner) else contextlib.nullcontext():
                truth = there.evaluate(asked).tensors
            if not self._scale.fits(truth, inner.largest):
                return None
            rounded = {word: self._keep(there.evaluate(asked, mode).tensors) for word, mode in modes.items()}
        except Exception as problem:  # the model's own code may raise anything
            if error_text.is_out_of_memory(problem):
                raise
            return None
        underflew = any(mode.underflew for mode in modes.values())
        constants = {word: mode.constant for word, mode in modes.items()}
        narrow = {n: t.to(torch.float32) for n, t in self._keep(truth).items()}
        return _Run(redraw, narrow, rounded, underflew, constants)

    def add(self, runs: Sequence[_Run | None]) -> None:
        """Add what the runs of some draws gave."""
        for run in (run for run in runs if run is not None):
            self._rounded_runs = max(DRAWS) if run.underflew else self._rounded_runs
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
            name: sums.sample(t) for name, t, known in found if t is not None and tuple(t.shape) == known.oracle.shape
        }

    def _add_up(self, name: TensorName, precision: Precision, draws: int = max(DRAWS)) -> sums.Rounded:
        found = self._found[precision.name, name][:draws]
        return sums.rounded_sums(found, self._truths[name][: len(found)], self._constants[precision.name])

    def count_needed(self) -> dict[str, int]:
        """How many draws each precision needs, so that the gain of every tensor is judged finely enough."""
        return {p.name: max((self._needs(name, p) for name in self._judged), default=0) for p in self._precisions}

    def _needs(self, name: TensorName, precision: Precision) -> int:
        rounded, reference = self._add_up(name, precision), self._judged[name]
        for draws in DRAWS:
            more = rounded.over(draws)
            if float(redraws.budgets(reference, precision, more).gain[0]) <= ENOUGH * float(more.squares[0]):
                return draws
        return max(DRAWS)

    def references(self) -> dict[TensorName, budget.TensorReference]:
        """The references of the tensors that every draw has, with their redraws."""
        if not self.redraws:
            return {}
        draws = {precision: min(count, len(self.redraws)) for precision, count in self.count_needed().items()}
        with_redraws = {}
        for name, reference in self._judged.items():
            truths = self._truths[name]
            rounded = {
                p.name: self._add_up(name, p, draws[p.name]).over(draws[p.name], truths[: draws[p.name]])
                for p in self._precisions
            }
            with_redraws[name] = replace(reference, redraws=sums.Redraws(tuple(truths), rounded))
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
        fewer: the last row of every input is left out.
        reordered: the inputs lie in memory with their first axis as the fastest.
        kept: names of buffers and frozen parameters that stay, because the model keeps what it computes of them.
    """

    picks: inputs.Picks
    weights: int
    fine: bool = False
    fewer: bool = False
    reordered: bool = False
    kept: tuple[str, ...] = ()

    def inputs(self, case: Case, seed: int) -> Call:
        """The inputs, on the CPU.

        Raises:
            SpecError: see `Case.draw`.
        """
        call = inputs.draw(case, seed, self.picks, coarse=not self.fine)
        call = inputs.fewer_rows(call) if self.fewer else call
        return inputs.reorder(call) if self.reordered else call

    def state(self, state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """The parameters and buffers for this draw, from those of the first, which float32 represents."""
        drawn = {n: t for n, t in state.items() if inputs.is_rounded(t) and n not in self.kept}
        reals = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in drawn.items()}
        if not reals:
            return state
        flat = torch.cat([self._times_factors(name, tensor, seed) for name, tensor in reals.items()]).float()
        flat = flat if self.fine else inputs.representable(flat)  # all at once, for the sake of time
        changed = dict(state)
        for name, part in zip(reals, flat.split([tensor.numel() for tensor in reals.values()]), strict=True):
            real = part.view(reals[name].shape).to(reals[name].dtype)
            changed[name] = torch.view_as_complex(real.clone()) if state[name].is_complex() else real
        return changed

    def _times_factors(self, name: str, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        generator = inputs.seed_generator("weights", seed, self.weights, name)
        factors = torch.rand(tensor.numel(), generator=generator).to(tensor.device)
        least = SMALLEST_FACTOR if self.fine else SMALLEST_COARSE_FACTOR
        return tensor.reshape(-1).double() * (least + (1.0 - least) * factors)

    def question(self, first: evaluation.Question, call: Call, model: Any) -> evaluation.Question:
        """The question of this draw, with inputs on the device and in the dtypes of the run."""
        names = inputs.named_inputs(model, call)
        pristine = inputs.place(call, convert=lambda t: t) if first.mutates else call
        again = (*first.seed, repr(self.picks), self.weights, self.fewer)
        first = replace(first, stacked=None, forward_mode=False)  # the first draw checks these
        return replace(first, call=call, pristine=pristine, names=names, seed=again)

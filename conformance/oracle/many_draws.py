"""Runs the oracle on further draws of a case, and adds what its rounded runs add up to there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from conformance.axes import Precision
from conformance.gates.budget import TensorReference
from conformance.gates.redraws import budgets
from conformance.gates.sums import Redraws, Rounded, rounded_sums, sampled
from conformance.oracle import inputs
from conformance.oracle.error_text import is_out_of_memory
from conformance.oracle.evaluation import Question, Tensors
from conformance.oracle.float64 import Oracle, wide_call
from conformance.oracle.kinks import MARGIN, KinkWatch
from conformance.oracle.nearest import Nearest
from conformance.oracle.redraw import FIRST_NUMBER, Redraw, alike
from conformance.oracle.scaling import fits
from zoo.case import Case

# Draws that are run rounded too; from these follows how many the tensors need. Behind a kink, and where numbers
# underflow, all draws are: what is lost there differs from draw to draw.
ROUNDED_RUNS = 4
DRAWS = (4, 8, 16)  # as many as are enough for every tensor, or the most
ENOUGH = 0.008  # the gain that a tensor should be judged to: a factor of 1.01 is red then
POOL = 4  # batches from which the rows of one draw are picked

References = dict[str, TensorReference | None]


def with_redraws(  # noqa: PLR0913 -- all that is known of a case
    oracle: Oracle, case: Case, question: Question, tensors: References, precisions: Sequence[Precision], scale: float
) -> tuple[tuple[Redraw, ...], References]:
    """The further draws of a case, and its references with what the rounded runs add up to in these draws.

    Args:
        oracle: the oracle.
        case: the case.
        question: the question of its first draw.
        tensors: the references of its tensors.
        precisions: those of the run; only low ones are judged over draws.
        scale: the scale of the cotangents under float16.
    """
    low = [p for p in precisions if p.low_dtype]
    judged = {name: r for name, r in tensors.items() if r is not None and is_judged_over_draws(r)}
    if not low or not judged:
        return (), tensors
    kinked = any(r.kinked for r in judged.values())
    draws = _ManyDraws(judged, low, scale, rounded_runs=max(DRAWS) if kinked else ROUNDED_RUNS)
    most = max(DRAWS)
    for redraw in _redraws(oracle, case, kinked=kinked):
        draws.add(oracle, case, question, redraw)
        if len(draws.redraws) == ROUNDED_RUNS:
            most = max(draws.needed().values())
        if len(draws.redraws) >= most:
            break
    return tuple(draws.redraws), {**tensors, **draws.references()}


def is_judged_over_draws(reference: TensorReference) -> bool:
    """Whether roundings of a tensor can average out: it has some, and it is not structurally zero."""
    oracle = reference.oracle
    return bool(oracle.reals.numel()) and oracle.is_rounded and not reference.exact and not reference.is_null


def _redraws(oracle: Oracle, case: Case, *, kinked: bool) -> Iterator[Redraw]:
    """Draws like the first; each is away from kinks if the samples of the case are independent."""
    first = inputs.draw(case, oracle.seed, 0)
    for number in range(max(DRAWS)):
        start = FIRST_NUMBER + POOL * number
        redraw = Redraw(start, weights=number + 1)
        if not alike(first, redraw.inputs(case, oracle.seed)):
            continue
        if kinked and case.independent_samples:
            redraw = replace(redraw, picks=_rows_off_the_kinks(oracle, case, redraw, range(start, start + POOL)))
        yield redraw


def _rows_off_the_kinks(oracle: Oracle, case: Case, redraw: Redraw, numbers: range) -> inputs.Picks:
    """The rows of some batches that are farthest from kinks, up to `MARGIN`."""
    there = oracle.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
    candidates: list[tuple[float, int, int]] = []
    rows = 0
    for number in numbers:
        call = inputs.draw_batch(case, oracle.seed, number)
        rows = inputs.row_count(call)
        with KinkWatch(rows) as watch:
            there.forward(case, call)
        candidates += [(-min(m, MARGIN), number, row) for row, m in enumerate(watch.margins.tolist())]
    return [(number, row) for _, number, row in sorted(candidates)[:rows]]


class _ManyDraws:
    """Collects the oracle's tensors in each draw, and those of the rounded runs in the first draws.

    Args:
        judged: the references of the tensors to follow, by name.
        precisions: the low precisions.
        scale: the scale of the cotangents under float16.
        rounded_runs: the number of draws that are run rounded too.

    Attributes:
        redraws: the draws so far.
    """

    def __init__(
        self, judged: dict[str, TensorReference], precisions: Sequence[Precision], scale: float, *, rounded_runs: int
    ) -> None:
        self.redraws: list[Redraw] = []
        self._scale, self._rounded_runs = scale, rounded_runs
        self._judged, self._precisions = dict(judged), precisions
        self._truths: dict[str, list[torch.Tensor]] = {name: [] for name in judged}
        self._found: dict[tuple[str, str], list[torch.Tensor]] = {(p.name, n): [] for p in precisions for n in judged}

    def add(self, oracle: Oracle, case: Case, question: Question, redraw: Redraw) -> None:
        """Run the oracle on one more draw, and rounded too if it is one of the first.

        A draw that fails is left out, and so is one whose gradients float16 may not hold.
        """
        there = oracle.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
        asked = redraw.question(question, wide_call(redraw.inputs(case, oracle.seed)), oracle.namer)
        rounded: dict[str, Tensors] = {}
        try:
            truth = there.evaluate(asked).tensors
            if not fits(self._scale, truth):
                return
            for precision in self._precisions if len(self.redraws) < self._rounded_runs else ():
                mode = Nearest(precision, self._scale)
                rounded[precision.name] = there.evaluate(asked, mode).tensors
                if mode.underflew:
                    self._rounded_runs = max(DRAWS)
        except Exception as problem:  # the model's own code may raise anything
            if is_out_of_memory(problem):
                raise
            return
        self.redraws.append(redraw)
        for name in list(self._judged):
            if not all(self._has(name, run) for run in (truth, *rounded.values())):
                del self._judged[name]
                continue
            self._truths[name].append(_kept(truth, name).to(torch.float32))
            for word, run in rounded.items():
                self._found[word, name].append(_kept(run, name))

    def _has(self, name: str, run: Tensors) -> bool:
        tensor = run.get(name)
        return tensor is not None and tuple(tensor.shape) == self._judged[name].oracle.shape

    def _rounded(self, name: str, precision: Precision, draws: int = max(DRAWS)) -> Rounded:
        found = self._found[precision.name, name][:draws]
        return rounded_sums(found, self._truths[name][: len(found)])

    def needed(self) -> dict[str, int]:
        """How many draws each precision needs, so that the gain of every tensor is judged finely enough."""
        return {p.name: max((self._needs(name, p) for name in self._judged), default=0) for p in self._precisions}

    def _needs(self, name: str, precision: Precision) -> int:
        rounded, reference = self._rounded(name, precision), self._judged[name]
        for draws in DRAWS:
            more = rounded.over(draws)
            if float(budgets(reference, precision, more).gain[0]) <= ENOUGH * float(more.squares[0]):
                return draws
        return max(DRAWS)

    def references(self) -> dict[str, TensorReference]:
        """The references of the tensors that every draw has, with their redraws."""
        if not self.redraws:
            return {}
        draws = {precision: min(count, len(self.redraws)) for precision, count in self.needed().items()}
        with_redraws = {}
        for name, reference in self._judged.items():
            truths = self._truths[name]
            rounded = {
                p.name: self._rounded(name, p, draws[p.name]).over(draws[p.name], truths[: draws[p.name]])
                for p in self._precisions
            }
            with_redraws[name] = replace(reference, redraws=Redraws(tuple(truths), rounded))
        return with_redraws


def _kept(run: Tensors, name: str) -> torch.Tensor:
    tensor = run[name]
    assert tensor is not None
    return sampled(tensor)

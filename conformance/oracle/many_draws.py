"""Runs the oracle on further draws of a case, and adds what its rounded runs add up to there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from conformance.axes import Precision
from conformance.gates.budget import TensorReference
from conformance.gates.redraws import budgets
from conformance.gates.sums import Redraws, rounded_sums, sampled
from conformance.oracle import inputs
from conformance.oracle.error_text import is_out_of_memory
from conformance.oracle.evaluation import Question, Tensors
from conformance.oracle.float64 import Oracle, wide_call
from conformance.oracle.kinks import MARGIN, KinkWatch
from conformance.oracle.nearest import Nearest
from conformance.oracle.redraw import FIRST_NUMBER, Redraw, alike
from zoo.case import Case

FEW, MANY = 4, 16  # draws: if `FEW` are not enough for every tensor, `MANY` are made
ENOUGH = 0.006  # the gain that a tensor should be judged to: a factor of 1.01 is red then
POOL = 4  # batches from which the rows of one draw are picked

References = dict[str, TensorReference | None]


def with_redraws(
    oracle: Oracle, case: Case, question: Question, tensors: References, precisions: Sequence[Precision]
) -> tuple[tuple[Redraw, ...], References]:
    """The further draws of a case, and its references with what the rounded runs add up to in these draws.

    Args:
        oracle: the oracle.
        case: the case.
        question: the question of its first draw.
        tensors: the references of its tensors.
        precisions: those of the run; only low ones are judged over draws.
    """
    low = [p for p in precisions if p.autocast]
    judged = {name: r for name, r in tensors.items() if r is not None and is_judged_over_draws(r)}
    if not low or not judged:
        return (), tensors
    draws = _ManyDraws(judged, low)
    for redraw in _redraws(oracle, case, question, any(r.kinked for r in judged.values())):
        if len(draws.redraws) in (FEW, MANY):
            draws.leave_what_is_clear()
        if len(draws.redraws) == MANY or not draws.precisions or not draws.judged:
            break
        draws.add(oracle, case, question, redraw)
    return tuple(draws.redraws), {**tensors, **draws.references()}


def is_judged_over_draws(reference: TensorReference) -> bool:
    """Whether roundings of a tensor can average out: it has some, and it is not structurally zero."""
    oracle = reference.oracle
    return bool(oracle.reals.numel()) and oracle.is_rounded and not reference.exact and not reference.is_null


def _redraws(oracle: Oracle, case: Case, question: Question, kinked: bool) -> Iterator[Redraw]:  # noqa: FBT001
    """Draws like the first; each is away from kinks if the samples of the case are independent."""
    first = inputs.draw(case, oracle.seed, 0)
    for number in range(MANY):
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
    """Collects the oracle's tensors and its rounded runs, draw by draw.

    Attributes:
        judged: the references of the tensors that every draw has, by name.
        precisions: those that need more draws.
        redraws: the draws so far.
    """

    def __init__(self, judged: dict[str, TensorReference], precisions: list[Precision]) -> None:
        self.judged, self.precisions, self.redraws = judged, precisions, list[Redraw]()
        self._all = tuple(precisions)
        self._truths: dict[str, list[torch.Tensor]] = {name: [] for name in judged}
        self._found: dict[tuple[str, str], list[torch.Tensor]] = {}

    def add(self, oracle: Oracle, case: Case, question: Question, redraw: Redraw) -> None:
        """Run the oracle on one more draw, exactly and rounded. A draw that it refuses is left out."""
        there = oracle.starting_from(redraw.state(oracle.narrow_state, oracle.seed))
        asked = redraw.question(question, wide_call(redraw.inputs(case, oracle.seed)), oracle.model)
        try:
            truth = there.evaluate(asked).tensors
            rounded = {}
            for precision in self.precisions:
                with Nearest(precision):
                    rounded[precision.name] = there.evaluate(asked).tensors
        except Exception as problem:  # the model's own code may raise anything
            if is_out_of_memory(problem):
                raise
            return
        self.redraws.append(redraw)
        for name in list(self.judged):
            runs = [truth, *rounded.values()]
            if not all(self._has(name, run) for run in runs):
                del self.judged[name]
                continue
            self._truths[name].append(_kept(truth, name).to(torch.float32))
            for precision, run in rounded.items():
                self._found.setdefault((precision, name), []).append(_kept(run, name))

    def _has(self, name: str, run: Tensors) -> bool:
        tensor = run.get(name)
        return tensor is not None and tuple(tensor.shape) == self.judged[name].oracle.shape

    def leave_what_is_clear(self) -> None:
        """Leave the precisions at which the draws so far judge the gain of every tensor finely enough."""
        references = self.references()
        self.precisions = [p for p in self.precisions if any(_is_coarse(r, p) for r in references.values())]

    def references(self) -> dict[str, TensorReference]:
        """The references of the judged tensors, with their redraws."""
        if not self.redraws:
            return {}
        with_draws = {}
        for name, reference in self.judged.items():
            truths = self._truths[name]
            rounded = {p.name: rounded_sums(self._found[p.name, name], truths) for p in self._all}
            with_draws[name] = replace(reference, redraws=Redraws(tuple(truths), rounded))
        return with_draws


def _kept(run: Tensors, name: str) -> torch.Tensor:
    tensor = run[name]
    assert tensor is not None
    return sampled(tensor)


def _is_coarse(reference: TensorReference, precision: Precision) -> bool:
    assert reference.redraws is not None
    rounded = reference.redraws.rounded[precision.name]
    return float(budgets(reference, precision, rounded).gain[0]) > ENOUGH * float(rounded.squares[0])

"""Chooses the inputs of a case away from kinks, where a gradient jumps and has no single right value."""

from __future__ import annotations

from conformance.axes import PRECISIONS
from conformance.errors import SelfCheckError
from conformance.oracle import inputs
from conformance.oracle.float64 import Oracle
from conformance.oracle.kinks import MARGIN, KinkWatch, flipped, tossed
from conformance.oracle.rounding import RUNS, Rounding
from zoo.case import Case

REDRAWS = 4  # draws of a case to try until float32's rounding flips no unit
BATCHES = 16  # draws to pick rows from that stay away from kinks


def choose(oracle: Oracle, case: Case) -> inputs.Picks:
    """Choose the draw of a case to use; if its samples are independent, the rows of several draws.

    A training takes the first draw, because it passes kinks at every step, and its loss curve does not jump there.

    Raises:
        SelfCheckError: in every draw, a number is exactly on a kink and rounding moves it off.
        NoOracleError, SpecError: the model does not run in float64, or not at all.
    """
    if oracle.spec.fit is not None:
        return 0
    return _rows_off_the_kinks(oracle, case) if case.independent_samples else _draw_off_the_kinks(oracle, case)


def _rows_off_the_kinks(oracle: Oracle, case: Case) -> inputs.Picks:
    """The (draw, row) pairs that keep the margin; if there are too few, also those that come closest to it."""
    candidates: list[tuple[float, int, int]] = []
    rows = 0
    for draw in range(BATCHES):
        call = inputs.draw_batch(case, oracle.seed, draw)
        rows = inputs.row_count(call)
        watch = KinkWatch(rows)
        with watch:
            oracle.forward(case, call)
        if not watch.kinked or not rows:
            return 0
        candidates += [(min(m, MARGIN), draw, row) for row, m in enumerate(watch.margins.tolist())]
        if sum(margin >= MARGIN for margin, _, _ in candidates) >= rows:
            break
    best = sorted(candidates, key=lambda c: -c[0])[:rows]
    return [(draw, row) for _, draw, row in best]


def _draw_off_the_kinks(oracle: Oracle, case: Case) -> inputs.Picks:
    """The first of a few draws in which float32's rounding flips no unit, or the one with the fewest flips."""
    counts: list[tuple[int, int]] = []
    for draw in range(REDRAWS):
        call = inputs.draw_batch(case, oracle.seed, draw)
        watch = KinkWatch()
        with watch:
            oracle.forward(case, call)
        if not watch.kinked:
            return 0
        flips, tosses = 0, 0
        for run in range(RUNS):
            perturbed = KinkWatch()
            generator = inputs.seeded("kink", oracle.seed, case.name, draw, run)
            with Rounding(PRECISIONS["fp32"], generator), perturbed:
                oracle.forward(case, call)
            flips, tosses = flips + flipped(watch, perturbed), tosses + tossed(watch, perturbed)
        if not flips:
            return draw
        if not tosses:
            counts.append((flips, draw))
    if not counts:
        raise SelfCheckError(
            f"case {case.name}: numbers sit exactly on a kink (relu, abs, clamp) but for rounding, so their "
            "gradients are a coin toss even in float64; move the inputs off the tie"
        )
    return min(counts)[1]

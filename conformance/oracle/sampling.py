"""Chooses the inputs of a case away from kinks, where a gradient jumps and has no single right value."""

from functools import partial

from conformance.errors import SelfCheckError
from conformance.evaluate import error_text, inputs
from conformance.float64.wide import Oracle
from conformance.gates.budget import FLOAT32
from conformance.gates.distance import OracleTensor
from conformance.perturb import kinks
from conformance.perturb.rounding import RUNS, Rounding
from conformance.process.forks import ALONE, Forks
from zoo.case import Call, Case

REDRAWS = 4  # draws of a case to try until float32's rounding flips no unit
BATCHES = 16  # draws to pick rows from that stay away from kinks
JUMP = 2.0**-14  # of a gradient: numbers that go to the other side of a kink change it by more
FAINT = 2.0**-20  # of the largest gradient: smaller ones are what cancellation leaves
FEW = 2.0**-12  # of the numbers that go through ops with kinks: if no more are on one, each weighs little


def choose(oracle: Oracle, case: Case, forks: Forks = ALONE) -> inputs.Picks:
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
        with error_text.blame_noise(case.name, FLOAT32), _noise(oracle, case, number, run), perturbed:
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
    gradients = {name: OracleTensor(t) for name, t in truth.items() if t is not None and name.is_gradient}
    faint = FAINT * max((measured.norm for measured in gradients.values()), default=0.0)
    for run in range(RUNS):
        with error_text.blame_noise(case.name, FLOAT32):
            moved = oracle.evaluate(question, _noise(oracle, case, number, run)).tensors
        for name, measured in gradients.items():
            other, most = moved[name], max(JUMP * measured.norm, faint)
            if other is None or not measured.distance(other).absolute <= most:
                return True
    return False


def _noise(oracle: Oracle, case: Case, number: int, run: int) -> Rounding:
    """The noise of float32 in one of the runs of a draw."""
    return Rounding(FLOAT32, inputs.seed_generator("kink", oracle.seed, case.name, number, run))


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

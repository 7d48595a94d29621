"""Compares measurements with a published gain: the verdict at each size, the verdict over sizes, and the page.

The functions are pure. The claim must be proven: a factor counts as reproduced only if the whole interval is near it
or above. A gain whose interval reaches lower counts as weaker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.figures.crossover import Point, crossover
from conformance.records.claims import PublishedClaim
from conformance.records.measurements import FASTER, FIGURES, NOISY, SAME, SLOWER, Ratio
from conformance.show.text import ratio_text, visible

SHARE = 0.8  # share of the published gain that counts as reproduced
REPRODUCED, WEAKER, WORSE = "reproduced", "weaker", "worse"
SIZE_DEPENDENT, NOT_REPRODUCED = "size-dependent", "not reproduced"
NO_FIGURE, NEEDS_CUDA = "no figure", "needs CUDA"
QUANTITIES = {**FIGURES, "saved": "bytes saved for backward", "peak": "peak bytes of forward and backward"}
HEADERS = ["claim", "published", "measured", "verdict"]
INTRODUCTION = f"""# Claims of the sources, measured again

`conformance claims` writes this page. The spec of a model of the zoo makes each claim. The command judges the model and
its baseline at every size first, and measures only cells that pass.

{{header}}

A figure is how many times faster the model is than the baseline, or how many times fewer bytes it needs: ▲ a gain, ▼ a
loss, = the same within 3 %, ~ too noisy to say. A time is the median of alternating calls. The brackets hold the hull
of the 99 % intervals of three processes. Bytes are counted, and three processes agree on them.

At a size, a claim is *reproduced* if the whole interval is at or above 1 + {SHARE} · (published factor − 1). It is
*weaker* if there is a smaller gain. Over the sizes that have a clear answer:

- *reproduced*, *weaker*: at every size.
- *size-dependent*: the sizes disagree, and at least one has a gain.
- *not reproduced*: no size has a gain.
- *no figure*: no size has a clear answer.
- *needs CUDA*: the claim is about CUDA, and the machine above has none.

A published factor holds for the machine and the sizes of its source. A verdict holds for those of this page.
"""


@dataclass(frozen=True)
class Replica:
    """A claim and its measurements.

    Attributes:
        published: the claim.
        points: one for each size; none if the device is absent.
        is_absent: this machine has no such device.
    """

    published: PublishedClaim
    points: tuple[Point, ...] = ()
    is_absent: bool = False

    @property
    def verdict(self) -> str:
        """One of the words on the page."""
        if self.is_absent:
            return NEEDS_CUDA
        words = {word(p.ratio, self.published.factor) for p in self.points if p.ratio and p.clear}
        if not words:
            return NO_FIGURE
        if words.isdisjoint({REPRODUCED, WEAKER}):
            return NOT_REPRODUCED
        return words.pop() if len(words) == 1 else SIZE_DEPENDENT


def word(ratio: Ratio, factor: float) -> str:
    """The word that compares a ratio with a published factor.

    >>> word(Ratio(3.0, 2.9, 3.1, pairs=20), 2.0), word(Ratio(1.5, 1.4, 1.9, pairs=20), 2.0)
    ('reproduced', 'weaker')
    """
    if ratio.verdict != FASTER:
        return {SAME: SAME, SLOWER: WORSE, NOISY: NOISY}[ratio.verdict]
    return REPRODUCED if ratio.low >= 1 + SHARE * (factor - 1) else WEAKER


def figure(point: Point, factor: float) -> str:
    """One size as text: ratio, interval if there is one, and word; without a ratio, the short reason.

    >>> figure(Point(64, Ratio(1.5, 1.4, 1.6, pairs=20)), 2.0), figure(Point(256, Ratio(2.0, 2.0, 2.0, pairs=3)), 2.0)
    ('▲1.50 [1.40, 1.60] weaker', '▲2.00 reproduced')
    """
    if point.ratio is None:
        return point.reason.short
    text = ratio_text(point.ratio)
    is_exact = point.ratio.low == point.ratio.high
    return f"{text.partition(' ')[0] if is_exact else text} {word(point.ratio, factor)}"


def page(header: str, replicas: Sequence[Replica]) -> str:
    """The page in Markdown: the rule, a table, and why figures are missing.

    Args:
        header: the machine and the versions, on one line.
        replicas: the claims with their measurements, in the order of the table.
    """
    rows = [HEADERS, ["---"] * len(HEADERS), *map(_row, replicas)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    notes = dict.fromkeys(note for replica in replicas for note in _notes(replica))
    missing = "\nWhy figures are missing:\n\n" + "\n".join(notes) + "\n" if notes else ""
    return f"{INTRODUCTION.format(header=visible(header))}\n{table}{missing}"


def _row(replica: Replica) -> list[str]:
    claim = replica.published
    base, variant = (
        f"`{model}[{mode}-{precision}]`"
        for model, mode, precision in (
            (claim.baseline, claim.baseline_mode, claim.baseline_precision),
            (claim.model, claim.mode, claim.precision),
        )
    )
    measured = [f"{p.size}: {_escaped(figure(p, claim.factor))}" for p in replica.points]
    return [
        f"{_escaped(claim.text)}<br>{variant} against {base}, {QUANTITIES[claim.quantity]}",
        f"{claim.factor:g}×: {_escaped(claim.source)}",
        "<br>".join([f"on {claim.device}, by {claim.size_name}", *measured] if measured else []),
        _verdict(replica),
    ]


def _verdict(replica: Replica) -> str:
    """The verdict and, if the sizes disagree, how they do."""
    claim = replica.published
    if replica.verdict != SIZE_DEPENDENT:
        return replica.verdict
    if any(p.clear and p.verdict != FASTER for p in replica.points):
        return f"{SIZE_DEPENDENT}: {_escaped(crossover(replica.points, claim.size_name))}"
    sizes = [str(p.size) for p in replica.points if p.ratio and word(p.ratio, claim.factor) == REPRODUCED]
    return f"{SIZE_DEPENDENT}: a gain everywhere, reproduced at {claim.size_name} {', '.join(sizes)}"


def _notes(replica: Replica) -> list[str]:
    return [
        f"- `{replica.published.variant_cell(point.size).id}`: {_escaped(str(point.reason))}"
        for point in replica.points
        if point.ratio is None
    ]


def _escaped(text: str) -> str:
    """Text for a cell of a table."""
    return visible(" ".join(text.split())).replace("|", "\\|")

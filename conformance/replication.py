"""What measurements say of a published gain: the verdict at each size, the verdict over sizes, and the page.

Pure: ratios in, words out; no clock and no torch. The burden of proof is the claim's: a factor counts as reproduced
where the whole interval is near it or above, so what is too uncertain to tell counts as weaker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.curve import Point, crossover
from conformance.interval import FASTER, NOISY, SAME, SLOWER, Ratio
from conformance.records import Cell
from conformance.table import FIGURES, ratio_text, visible

SHARE = 0.8  # of the published gain
REPRODUCED, WEAKER, WORSE = "reproduced", "weaker", "worse"
SIZE_DEPENDENT, NOT_REPRODUCED = "size-dependent", "not reproduced"
NO_FIGURE, NEEDS_CUDA = "no figure", "needs CUDA"
QUANTITIES = {**FIGURES, "saved": "bytes saved for backward", "peak": "peak bytes of forward and backward"}
HEADERS = ["claim", "published", "measured", "verdict"]
INTRODUCTION = f"""# Claims of the sources, measured again

Written by `conformance claims`. Each claim stands beside a model of the zoo. Model and baseline are judged at every
size first, and only what is green is measured.

{{header}}

A figure says how many times faster than the baseline, or how many times fewer bytes: ▲ a gain, ▼ a loss, = the same
within 3 %, ~ too noisy to say. Times are the median of calls in turn, with the hull of the 99 % intervals of three
processes in brackets. Bytes are counted, and three processes agree on them.

At a size, a claim is *reproduced* where the whole interval is at or above 1 + {SHARE} · (published factor − 1), and
*weaker* where there is a gain without that. Over the sizes that have a clear answer:

- *reproduced*, *weaker*: so at every size.
- *size-dependent*: the sizes disagree, and at least one has a gain.
- *not reproduced*: no size has a gain.
- *no figure*: no size has a clear answer.
- *needs CUDA*: the claim is about CUDA, and the machine above has none.

A published factor belongs to the machine and the sizes of its source, a verdict to those of this page.
"""


@dataclass(frozen=True)
class Published:
    """A claim of a model, as data; see `zoo.claim.Claim` for its fields.

    Attributes:
        model: whose claim it is.
        knob: what a size is called, such as "width".
        sizes: at which to measure.
        baseline: name of the model compared with, which may be the same.
        device: "cpu" or "cuda".
    """

    model: str
    knob: str
    sizes: tuple[int, ...]
    text: str
    source: str
    factor: float
    quantity: str
    baseline: str
    mode: str
    precision: str
    baseline_mode: str
    baseline_precision: str
    device: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Published:
        return cls(**{**data, "sizes": tuple(data["sizes"])})

    @property
    def is_timed(self) -> bool:
        return self.quantity in FIGURES

    def cells(self, size: int) -> tuple[Cell, Cell]:
        """What is compared at a size, the baseline first."""
        return (
            Cell(f"{self.baseline}@{size}", self.baseline_mode, self.baseline_precision, self.device),
            Cell(f"{self.model}@{size}", self.mode, self.precision, self.device),
        )


@dataclass(frozen=True)
class Replica:
    """A claim and what came of it.

    Attributes:
        published: the claim.
        points: one for each size; none where the device is absent.
        is_absent: no such device here.
    """

    published: Published
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
    """What a ratio says of a published factor.

    >>> word(Ratio(3.0, 2.9, 3.1, pairs=20), 2.0), word(Ratio(1.5, 1.4, 1.9, pairs=20), 2.0)
    ('reproduced', 'weaker')
    """
    if ratio.verdict != FASTER:
        return {SAME: SAME, SLOWER: WORSE, NOISY: NOISY}[ratio.verdict]
    return REPRODUCED if ratio.low >= 1 + SHARE * (factor - 1) else WEAKER


def figure(point: Point, factor: float) -> str:
    """One size: ratio, interval where there is one, and word; otherwise why there is none, in short.

    >>> figure(Point(64, Ratio(1.5, 1.4, 1.6, pairs=20)), 2.0), figure(Point(256, Ratio(2.0, 2.0, 2.0, pairs=3)), 2.0)
    ('▲1.50 [1.40, 1.60] weaker', '▲2.00 reproduced')
    """
    if point.ratio is None:
        return point.reason.partition(":")[0]
    text = ratio_text(point.ratio)
    is_exact = point.ratio.low == point.ratio.high
    return f"{text.partition(' ')[0] if is_exact else text} {word(point.ratio, factor)}"


def page(header: str, replicas: Sequence[Replica]) -> str:
    """The page in Markdown: the rule, a table, and why figures are missing.

    Args:
        header: where it was measured.
        replicas: in the order to show them.
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
        "<br>".join([f"on {claim.device}, by {claim.knob}", *measured] if measured else []),
        _verdict(replica),
    ]


def _verdict(replica: Replica) -> str:
    """The verdict; where sizes disagree, on what."""
    claim = replica.published
    if replica.verdict != SIZE_DEPENDENT:
        return replica.verdict
    if any(p.clear and p.verdict != FASTER for p in replica.points):
        return f"{SIZE_DEPENDENT}: {_escaped(crossover(_in_short(replica.points), claim.knob))}"
    sizes = [str(p.size) for p in replica.points if p.ratio and word(p.ratio, claim.factor) == REPRODUCED]
    return f"{SIZE_DEPENDENT}: a gain everywhere, reproduced at {claim.knob} {', '.join(sizes)}"


def _in_short(points: Sequence[Point]) -> list[Point]:
    return [Point(p.size, p.ratio, p.reason.partition(":")[0]) for p in points]


def _notes(replica: Replica) -> list[str]:
    return [
        f"- `{replica.published.cells(point.size)[1].id}`: {_escaped(point.reason)}"
        for point in replica.points
        if point.ratio is None
    ]


def _escaped(text: str) -> str:
    """Text for a cell of a table."""
    return visible(" ".join(text.split())).replace("|", "\\|")

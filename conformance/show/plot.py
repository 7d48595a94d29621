"""Draws speedup over size as SVG, with the standard library alone; equal curves give equal bytes.

Every colour is visible on a white page and on a dark one. Every curve also has its own dashes and dots, so that colour
is not the only difference.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from conformance.figures.crossover import Point, crossover

INK = "#7a7a7a"
COLOURS = ("#1f7fe0", "#d2691e", "#2a9148", "#a35fe0", "#d9485f", "#128c93", "#a1752b", "#c9509f")
DASHES = ("none", "9 4", "2 3", "9 3 2 3", "16 4", "5 3", "9 3 2 3 2 3", "16 3 5 3")
DOTS = (
    *("m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "m-3.5,-3.5h7v7h-7z", "m0,-5l5,5l-5,5l-5,-5z", "m0,-5l5,9h-10z"),
    *("m0,5l5,-9h-10z", "m-5,0l9,5v-10z", "m5,0l-9,5v-10z", "m-1.5,-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"),
)
WIDTH, MARGIN, LEFT, PLOT, INSET = 720, 20, 76, 300, 28  # pixels; INSET keeps the outermost dots off the frame
FONT, LINE, SAMPLE, GAP = 13, 22, 56, 24  # GAP: smallest distance of two ratios on the axis
BOLD = 'font-weight="bold"'
STEPS = ((1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7), (1, 2, 5))
LEAST_RANGE = (0.8, 1.25)  # noise must not fill the picture
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold


@dataclass(frozen=True)
class Frame:
    """Positions of sizes and ratios on the picture, in pixels. Both axes are logarithmic.

    Attributes:
        size_name: what the size is called, such as "width".
        sizes: the sizes, ascending.
        low, high: smallest and largest ratio.
        right, top: edges of the frame, in pixels.
    """

    size_name: str
    sizes: Sequence[int]
    low: float
    high: float
    right: float
    top: float

    def x(self, size: int) -> float:
        """Horizontal position of a size, in pixels."""
        first, last = math.log2(self.sizes[0]), math.log2(self.sizes[-1])
        share = (math.log2(size) - first) / (last - first) if first < last else 0.5
        return LEFT + INSET + share * (self.right - LEFT - 2 * INSET)

    def y(self, ratio: float) -> float:
        """Vertical position of a ratio, in pixels."""
        return self.top + PLOT * math.log(self.high / ratio) / math.log(self.high / self.low)

    @property
    def bottom(self) -> float:
        """Lower edge of the frame, in pixels."""
        return self.top + PLOT


def draw(title: str, size_name: str, curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw the picture.

    Args:
        title: text above the curves, of any length.
        size_name: what the size is called, such as "width".
        curves: points of each curve, by its name in the legend. A curve has a gap at a point without a ratio.

    Returns:
        SVG, one element.

    Raises:
        ValueError: two points of a curve have one size.

    >>> from conformance.records.measurements import Ratio
    >>> draw("MLP", "width", {"compiled": [Point(64, Ratio(2.0, 1.9, 2.1, pairs=20))]})[:4]
    '<svg'
    """
    curves = {name: sorted(points, key=lambda p: p.size) for name, points in curves.items()}
    widest = max((_length(name) for name in curves), default=0)
    width = max(WIDTH, math.ceil(LEFT + SAMPLE + widest + MARGIN))
    heading = _wrapped(title, width - 2 * MARGIN)
    frame = _frame(size_name, curves, right=width - MARGIN, top=LINE * len(heading) + 44)
    columns = max(1, int((frame.right - LEFT) // (SAMPLE + widest + MARGIN)))
    height = frame.bottom + 62 + LINE * math.ceil(len(curves) / columns)
    told = "; ".join(f"{name}: {crossover(points, size_name)}" for name, points in curves.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        f'role="img" font-family="system-ui, sans-serif" font-size="{FONT}" fill="{INK}">',
        f"<title>{_safe(title)}</title>",
        f"<desc>{_safe(f'Speedup over {size_name}. {told}')}</desc>",
        *(_text(MARGIN, LINE * row + 4, words, look=BOLD + ' font-size="16"') for row, words in enumerate(heading, 1)),
        *_axes(frame),
        *_curves(frame, list(curves.values())),
        *(part for n, name in enumerate(curves) for part in _legend(frame, n, columns, name)),
    ]
    return "\n".join([*parts, "</svg>\n"])


def _frame(size_name: str, curves: Mapping[str, Sequence[Point]], right: float, top: float) -> Frame:
    points = [p for curve in curves.values() for p in curve]
    low = min([LEAST_RANGE[0], *(p.ratio.low for p in points if p.ratio)])
    high = max([LEAST_RANGE[1], *(p.ratio.high for p in points if p.ratio)])
    room = (high / low) ** 0.05
    return Frame(size_name, sorted({p.size for p in points}), low / room, high * room, right, top)


def _axes(frame: Frame) -> Iterable[str]:
    yield _text(MARGIN, frame.top - 14, "speedup")
    for tick in _ticks(frame):
        y, one = frame.y(tick), tick == 1
        yield _line(f"M{LEFT},{y:.1f}H{frame.right}", INK, 'stroke-width="2.5"' if one else 'opacity="0.3"')
        yield _text(LEFT - 8, y + 4.5, f"{tick:g}×", "end", BOLD if one else "")
    yield _line(f"M{LEFT},{frame.bottom}H{frame.right}", INK)
    stride = _stride(frame)
    for n, size in enumerate(frame.sizes):
        yield _line(f"M{frame.x(size):.1f},{frame.bottom}v5", INK)
        if n % stride == 0:
            yield _text(frame.x(size), frame.bottom + 20, str(size), "middle")
    yield _text((LEFT + frame.right) / 2, frame.bottom + 40, frame.size_name, "middle")


def _ticks(frame: Frame) -> list[float]:
    """Round ratios, 1 among them, as many as there is room for labels."""
    decades = range(math.floor(math.log10(frame.low)), math.ceil(math.log10(frame.high)) + 1)
    choices = [[float(f"{step}e{d}") for d in decades for step in steps] for steps in STEPS]
    choices += [[float(f"1e{d}") for d in decades if d % stride == 0] for stride in range(1, len(decades) + 1)]
    for choice in choices:
        ticks = [tick for tick in choice if frame.low <= tick <= frame.high]
        if all(frame.y(a) - frame.y(b) >= GAP for a, b in pairwise(ticks)):
            return ticks
    return [1.0]


def _stride(frame: Frame) -> int:
    """The smallest n for which the labels of every n-th size have room."""
    for stride in range(1, len(frame.sizes)):
        shown = [(frame.x(size), _length(str(size)) / 2) for size in frame.sizes[::stride]]
        if all(b - a >= half + wide for (a, half), (b, wide) in pairwise(shown)):
            return stride
    return max(1, len(frame.sizes))


def _curves(frame: Frame, curves: Sequence[Sequence[Point]]) -> Iterable[str]:
    for n, points in enumerate(curves):
        yield from _curve(frame, n, len(curves), points)
    if not any(p.ratio for points in curves for p in points):
        yield _text((LEFT + frame.right) / 2, frame.top + PLOT / 4, "nothing measured", "middle")


def _curve(frame: Frame, n: int, count: int, points: Sequence[Point]) -> Iterable[str]:
    colour, dashes, dot = _look(n)
    nearest = min((frame.x(b) - frame.x(a) for a, b in pairwise(frame.sizes)), default=math.inf)
    aside = (n - (count - 1) / 2) * min(4.0, nearest / (3 * count))  # otherwise the intervals would cover each other
    for _, run in groupby(points, key=lambda p: p.ratio is None):
        spots = [(frame.x(p.size) + aside, *map(frame.y, (r.low, r.middle, r.high))) for p in run if (r := p.ratio)]
        path = "L".join(f"{x:.1f},{middle:.1f}" for x, _, middle, _ in spots)
        if len(spots) > 1:
            yield _line(f"M{path}", colour, f'stroke-width="2" {dashes}')
        for x, low, middle, high in spots:
            yield _line(f"M{x - 3:.1f},{low:.1f}h6m-3,0V{high:.1f}m-3,0h6", colour)
            yield f'<path d="M{x:.1f},{middle:.1f}{dot}" fill="{colour}"/>'


def _legend(frame: Frame, n: int, columns: int, name: str) -> Iterable[str]:
    colour, dashes, dot = _look(n)
    x = LEFT + (n % columns) * (frame.right - LEFT) / columns
    y = frame.bottom + 66 + LINE * (n // columns)
    yield _line(f"M{x:.1f},{y - 4.5}h{SAMPLE - 8}", colour, f'stroke-width="2" {dashes}')
    yield f'<path d="M{x + (SAMPLE - 8) / 2:.1f},{y - 4.5}{dot}" fill="{colour}"/>'
    yield _text(x + SAMPLE, y, name)


def _look(n: int) -> tuple[str, str, str]:
    """Colour, dashes and dot of the n-th curve; those of the first 64 differ."""
    other = (n + n // 8) % 8
    return COLOURS[n % 8], f'stroke-dasharray="{DASHES[other]}"', DOTS[other]


def _line(path: str, colour: str, look: str = "") -> str:
    return f'<path d="{path}" fill="none" stroke="{colour}"{look and f" {look}"}/>'


def _text(x: float, y: float, words: str, anchor: str = "start", look: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look and f" {look}"}>{_safe(words)}</text>'


def _wrapped(title: str, room: float) -> list[str]:
    """The title in lines that fit."""
    share = room / (_length(title) * 1.3 or 1)  # the title is larger, and bold
    return textwrap.wrap(title, max(1, int(len(title) * share))) or [""]


def _safe(text: str) -> str:
    return html.escape(UNPRINTABLE.sub("\ufffd", text))


def _length(text: str) -> float:
    """Pixels that a text may take in any common font; an estimate on the safe side."""
    return FONT * sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.8 if c.isupper() else 0.65 for c in text)

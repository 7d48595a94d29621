"""Draws a bench as text: times and costs of each model and size, and the sizes at which variants pay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from conformance.figures import speed
from conformance.figures.crossover import NOT_MEASURED, Point, byte_rate, crossover, share
from conformance.records.cell import Cell
from conformance.records.measurements import FIGURES, Ceilings, CompileCost, Footprint, Reason
from conformance.show.text import duration, ratio_text, speed_text, table, visible, without_speed, wrap
from conformance.store.run_files import Contents

NEVER = "never"
LEGEND = """
steps to break even: calls of forward and backward after which compiling has paid for itself, compared with eager at
the same precision; with an empty compile cache and with a full one. saved: bytes kept for backward. held: bytes
allocated behind the result of forward. peak: most bytes at one time in forward and backward. of the limit: the least
time that the operations and bytes could take on this machine, over the time taken.
"""
COSTS = [
    *("precision", "mode", "first gradient, cold", "warm", "calls to steady", "steps to break even, cold", "warm"),
    *("saved", "held", "peak", "of the limit, forward", "gradient"),
]


@dataclass(frozen=True)
class Curves:
    """How many times faster than eager fp32 the modes of a model are, by size.

    Attributes:
        figure: the title of what was timed.
        modes: the points of each mode, by rising size.
    """

    model: str
    device: str
    precision: str
    figure: str
    size_name: str
    modes: Mapping[str, Sequence[Point]]


def bench_text(contents: Contents) -> str:
    """The measurements of a bench: two tables for each model and size, then the sizes at which variants pay."""
    return _Bench(contents).text()


def curves(contents: Contents) -> list[Curves]:
    """The speeds of the models that a bench has measured at several sizes, one for each device and precision."""
    return list(_Bench(contents).curves())


class _Bench:
    """The figures of one bench, by cell."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._plan = contents.plan
        measured = {figure for model in self._plan.models.values() for figure in model.figures}
        self._speeds = {figure: speed.speeds(contents, figure) for figure in FIGURES if figure in measured}
        self._cells = speed.measurable(contents)
        self._devices = list(dict.fromkeys(c.device for c in self._cells))
        self._sized = {(one.size.model, one.size.size_name): one for one in self._plan.models.values() if one.size}

    def text(self) -> str:
        """The whole report."""
        parts = []
        for model, device in dict.fromkeys((c.model, c.device) for c in self._cells):
            cells = [c for c in self._cells if (c.model, c.device) == (model, device)]
            sized = self._plan.models[model].size
            title = f"{model} ({visible(sized.size_name)} {sized.size})" if sized else model
            costs = _without_empty([[cell.precision, cell.mode, *self._costs(cell)] for cell in cells], COSTS)
            parts += [f"── {title}, {device} ──", self._speed_table(cells), costs]
        parts.append(LEGEND.strip() if parts else "no cell passes, so nothing was measured")
        parts.append("\n".join(self._crossovers()))
        parts += [wrap("\n".join(without_speed(FIGURES[n], found))) for n, found in self._speeds.items()]
        return "\n\n".join(filter(None, parts))

    def _speed_table(self, cells: list[Cell]) -> str:
        figures = [f for f in self._speeds if f in self._plan.models[cells[0].model].figures]
        rows = []
        for cell in cells:
            found = [self._speeds[figure].get(cell.id) for figure in figures]
            rows.append([cell.precision, cell.mode, *map(_beside_fp32, found), *map(_beside_eager, found)])
        titles = [FIGURES[figure] for figure in figures]
        return _without_empty(rows, ["precision", "mode", *titles, *(f"{title}, to eager" for title in titles)])

    def _costs(self, cell: Cell) -> list[str]:
        cold, warm = (self._first_gradient(cell, cache) for cache in ("cold", "warm"))
        timed = self._default_speed(cell)
        counts = self._counts(cell)
        compiles = cell.mode in self._plan.compiling_modes
        return [
            _seconds(cold),
            _seconds(warm) if compiles else "",
            str(timed.warm_calls) if timed and timed.seconds else "",
            self._break_even(cell, cold),
            self._break_even(cell, warm) if compiles else "",
            *(_with_spaces(count) for count in (counts.saved, counts.held, counts.peak)),
            self._share(cell, "forward", "forward"),
            self._share(cell, "gradient", "both"),
        ]

    def _counts(self, cell: Cell) -> Footprint:
        found = self._contents.result(Footprint, speed.footprint_job(cell))
        return found if isinstance(found, Footprint) else Footprint()

    def _default_speed(self, cell: Cell) -> speed.Speed | None:
        figure = speed.default_figure(self._plan.models[cell.model].figures)
        return self._speeds.get(figure, {}).get(cell.id)

    def _first_gradient(self, cell: Cell, cache: str) -> float | Reason | None:
        """Seconds to the first gradient, the median of the warm runs; the reason if there are none."""
        cost = self._contents.result(CompileCost, speed.compile_job(cell))
        if not isinstance(cost, CompileCost):
            return cost
        runs = [cost.cold] if cache == "cold" else cost.warm
        why = next((run.reason for run in runs if run.reason), None)
        if why:
            return why
        seconds = sorted(run.first_gradient or run.first_output or 0.0 for run in runs)
        return seconds[len(seconds) // 2] if seconds else None

    def _break_even(self, cell: Cell, first: float | Reason | None) -> str:
        """(first call − eager's first call) / (eager's call − this call), with the low end of the gain."""
        eager = Cell(cell.model, "eager", cell.precision, cell.device)
        mine, base = (self._default_speed(c) for c in (cell, eager))
        started = self._first_gradient(eager, "cold")
        ratio = mine.ratios.get(eager.id) if mine else None  # none to itself
        if ratio is None or base is None or base.seconds is None:
            return ""
        if not isinstance(first, float) or not isinstance(started, float):
            return ""
        if ratio.low <= 1:
            return NEVER
        gain = base.seconds * (1 - 1 / ratio.low)
        return _with_spaces(round(float(f"{max(0.0, first - started) / gain:.2g}")))

    def _share(self, cell: Cell, figure: str, part: str) -> str:
        ceilings = self._contents.result(Ceilings, speed.ceilings_job(cell.device))
        timed = self._speeds.get(figure, {}).get(cell.id)
        least, flops = (self._counts(cell).count(f"{name}.{part}") for name in ("least_bytes", "flops"))
        if timed is None or timed.seconds is None or least is None or flops is None:
            return ""
        if not isinstance(ceilings, Ceilings):
            return ""
        rate = byte_rate(ceilings.byte_rates, least)
        reached = 100 * share(flops, least, timed.seconds, ceilings.flop_rates[cell.precision], rate)
        return f"beats the ceiling: {reached:.0f} %" if reached > 100 else f"{float(f'{reached:.2g}'):g} %"  # noqa: PLR2004

    def _crossovers(self) -> Iterator[str]:
        """At which sizes each variant pays: a line for every figure of every model that was measured at several."""
        for (model, size_name), device, figure in product(self._sized, self._devices, self._speeds):
            for (mode, precision), points in self._variants(model, device, figure).items():
                if any(point.ratio for point in points):
                    found = f"{mode} {precision} {visible(crossover(points, size_name))}"
                    yield f"{model}, {FIGURES[figure]}, {device}: {found}"

    def curves(self) -> Iterator[Curves]:
        """See `curves`. A model has those of the figure that a run times, too."""
        for ((model, size_name), planned), device in product(self._sized.items(), self._devices):
            figure = speed.default_figure(planned.figures)
            found: dict[str, dict[str, list[Point]]] = {}
            for (mode, precision), points in self._variants(model, device, figure).items():
                if len(points) > 1 and any(point.ratio for point in points):
                    found.setdefault(precision, {})[mode] = sorted(points, key=lambda point: point.size)
            for precision, modes in found.items():
                yield Curves(model, device, precision, FIGURES[figure], size_name, modes)

    def _variants(self, model: str, device: str, figure: str) -> dict[tuple[str, str], list[Point]]:
        """Points over size of each variant, by its mode and precision."""
        variants: dict[tuple[str, str], list[Point]] = {}
        for cell in self._cells:
            sized, base = self._plan.models[cell.model].size, Cell(cell.model, "eager", "fp32", device).id
            timed = self._speeds[figure].get(cell.id)
            if sized and timed and sized.model == model and cell.device == device and cell.id != base:
                point = Point(sized.size, timed.ratios.get(base), timed.reason or NOT_MEASURED)
                variants.setdefault((cell.mode, cell.precision), []).append(point)
        return variants


def _beside_fp32(found: speed.Speed | None) -> str:
    if found is None:
        return ""
    time = f"{duration(found.seconds)}  " if found.seconds is not None and found.ratios else ""
    return time + speed_text(found)


def _beside_eager(found: speed.Speed | None) -> str:
    """The ratio to eager at the same precision, if that is not the baseline already."""
    ratios = list(found.ratios.values()) if found else []
    return ratio_text(ratios[1]) if len(ratios) > 1 else ""


def _seconds(value: float | Reason | None) -> str:
    if isinstance(value, Reason):
        return visible(value.short)
    return "" if value is None else duration(value)


def _with_spaces(count: int | None) -> str:
    return "" if count is None else f"{count:,}".replace(",", " ")


def _without_empty(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """A table without its empty columns."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return table([[row[i] for i in kept] for row in rows], [head[i] for i in kept])

"""Draws a bench as text: for each model and size what was timed, what it costs, and where each variant pays.

Pure: stored answers in, text and SVG out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tabulate

from conformance import curve, plot, roofline, speed
from conformance.curve import Point
from conformance.records import Cell, Speed
from conformance.store import Contents
from conformance.table import duration, ratio_text, speed_text, visible, without_speed

TITLES = {"forward": "forward", "gradient": "forward and backward", "step": "training step", "fit": "training"}
NEVER = "never"
LEGEND = """
steps to break even: calls of forward and backward after which the time that compiling took is earned back, against
eager of the same precision; with an empty compile cache and with a full one. saved: bytes kept for backward; held:
allocated behind the result of forward; peak: most at one time in forward and backward. of the limit: the least time
that operations and bytes could take, by the best product and the best move of this machine, over the time taken.
"""


class Bench:
    """The figures of one bench, by cell."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._plan = contents.plan
        self._speeds = {
            figure: speed.speeds(contents, figure)
            for figure in TITLES
            if any(figure in figures for figures in self._plan["figures"].values())
        }
        self._green = speed.green(contents)

    def text(self) -> str:
        """All tables."""
        parts = []
        for model, device in dict.fromkeys((c.model, c.device) for c in self._green):
            cells = [c for c in self._green if (c.model, c.device) == (model, device)]
            parts += [f"── {self._title(model)}, {device} ──", self._speed_table(cells), self._cost_table(cells)]
        parts.append(LEGEND.strip() if parts else "nothing is green, so nothing was measured")
        parts.append("\n".join(self._crossovers()))
        parts += ["\n".join(without_speed(TITLES[figure], found)) for figure, found in self._speeds.items()]
        return "\n\n".join(part for part in parts if part)

    def plots(self) -> Iterator[tuple[str, str]]:
        """File name and SVG for every figure of every model that was measured at several sizes."""
        for model, knob, device, figure in self._scaled():
            curves = self._curves(model, device, figure)
            if curves:
                title = f"{model}, {TITLES[figure]}, {device}: times as fast as eager fp32"
                yield f"{model}-{figure}-{device}.svg", plot.draw(title, knob, curves)

    def _title(self, model: str) -> str:
        scale = self._plan["scales"].get(model)
        return f"{model} ({scale['knob']} {scale['size']})" if scale else model

    def _speed_table(self, cells: list[Cell]) -> str:
        figures = [f for f in self._speeds if f in self._plan["figures"][cells[0].model]]
        rows = []
        for cell in cells:
            found = [self._speeds[figure].get(cell.id) for figure in figures]
            rows.append(
                [cell.precision, cell.mode, *(_beside_fp32(s) for s in found), *(_beside_eager(s) for s in found)]
            )
        head = ["precision", "mode", *(TITLES[f] for f in figures), *(f"{TITLES[f]}, to eager" for f in figures)]
        return _table(rows, head)

    def _cost_table(self, cells: list[Cell]) -> str:
        rows = [[cell.precision, cell.mode, *self._costs(cell)] for cell in cells]
        head = [
            "precision",
            "mode",
            "first gradient, cold",
            "warm",
            "calls to steady",
            "steps to break even, cold",
            "warm",
        ]
        return _table(rows, [*head, "saved", "held", "peak", "of the limit, forward", "gradient"])

    def _costs(self, cell: Cell) -> list[str]:
        cold, warm = (self._first_gradient(cell, cache) for cache in ("cold", "warm"))
        timed = self._speeds.get(self._usual(cell), {}).get(cell.id)
        bytes_of = self._contents.answers.get(f"footprint {cell.id}", {})
        return [
            _seconds(cold),
            _seconds(warm) if cell.mode == "compiled" else "",
            str(timed.warm_calls) if timed and timed.seconds else "",
            self._break_even(cell, cold),
            self._break_even(cell, warm) if cell.mode == "compiled" else "",
            *(_grouped(bytes_of.get(field)) for field in ("saved", "held", "peak")),
            self._share(cell, "forward", "forward"),
            self._share(cell, "gradient", "both"),
        ]

    def _usual(self, cell: Cell) -> str:
        return speed.usual(self._plan["figures"][cell.model])

    def _first_gradient(self, cell: Cell, cache: str) -> float | str | None:
        """Seconds, or why there are none; of several warm runs the middle one."""
        answer = self._contents.answers.get(f"compile {cell.id}", {})
        runs: list[dict[str, Any]] = (
            [answer["cold"]] if cache == "cold" and "cold" in answer else answer.get("warm", [])
        )
        why = next((run["reason"] for run in runs if "reason" in run), None)
        if why:
            return str(why).partition(":")[0]
        seconds = sorted(run["first_gradient"] or run["first_output"] for run in runs)
        return seconds[len(seconds) // 2] if seconds else None

    def _break_even(self, cell: Cell, first: float | str | None) -> str:
        """(first call − eager's first call) / (eager's call − this call), with the sure part of the gain."""
        eager = Cell(cell.model, "eager", cell.precision, cell.device)
        mine, base = (self._speeds.get(self._usual(cell), {}).get(c.id) for c in (cell, eager))
        started = self._first_gradient(eager, "cold")
        if (
            cell.mode == "eager"
            or not mine
            or not base
            or not isinstance(first, float)
            or not isinstance(started, float)
        ):
            return ""
        ratio = mine.ratios.get(eager.id)
        if ratio is None or base.seconds is None:
            return ""
        if ratio.low <= 1:
            return NEVER
        gain = base.seconds * (1 - 1 / ratio.low)
        return _grouped(round(float(f"{max(0.0, first - started) / gain:.2g}")))

    def _share(self, cell: Cell, figure: str, part: str) -> str:
        ceilings = self._contents.answers.get(f"ceilings {cell.device}", {})
        counted = self._contents.answers.get(f"footprint {cell.id}", {})
        timed = self._speeds.get(figure, {}).get(cell.id)
        least, flops = ((counted.get(field) or {}).get(part) for field in ("least_bytes", "flops"))
        if timed is None or timed.seconds is None or least is None or flops is None or "flop_rates" not in ceilings:
            return ""
        rate = roofline.byte_rate(ceilings["byte_rates"], least)
        reached = roofline.share(flops, least, timed.seconds, ceilings["flop_rates"][cell.precision], rate)
        if reached > 1:
            return f"beats the ceiling: {100 * reached:.0f} %"
        return f"{float(f'{100 * reached:.2g}'):g} %"

    def _scaled(self) -> Iterator[tuple[str, str, str, str]]:
        devices = dict.fromkeys(c.device for c in self._green)
        for model, knob in dict.fromkeys((s["model"], s["knob"]) for s in self._plan["scales"].values()):
            for device in devices:
                for figure in self._speeds:
                    yield model, knob, device, figure

    def _curves(self, model: str, device: str, figure: str) -> dict[str, list[Point]]:
        """Points over size by mode and precision."""
        curves: dict[str, list[Point]] = {}
        for name, scale in self._plan["scales"].items():
            base = Cell(name, "eager", "fp32", device).id
            for cell in (c for c in self._green if (c.model, c.device) == (name, device) and c.id != base):
                timed = self._speeds[figure].get(cell.id)
                if scale["model"] == model and timed is not None:
                    point = Point(scale["size"], timed.ratios.get(base), timed.reason.partition(":")[0])
                    curves.setdefault(f"{cell.mode} {cell.precision}", []).append(point)
        return {name: points for name, points in curves.items() if any(p.ratio for p in points)}

    def _crossovers(self) -> Iterator[str]:
        for model, knob, device, figure in self._scaled():
            for variant, points in self._curves(model, device, figure).items():
                yield f"{model}, {TITLES[figure]}, {device}: {variant} {curve.crossover(points, knob)}"


def write_plots(contents: Contents, folder: Path) -> list[Path]:
    """Write the SVGs into the folder's `plots`."""
    written = []
    for name, svg in Bench(contents).plots():
        path = folder / "plots" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg, encoding="utf-8")
        written.append(path)
    return written


def _beside_fp32(found: Speed | None) -> str:
    if found is None:
        return ""
    time = f"{duration(found.seconds)}  " if found.seconds is not None and found.ratios else ""
    return time + visible(speed_text(found))


def _beside_eager(found: Speed | None) -> str:
    """The ratio to eager of the same precision, where that is not the baseline already."""
    ratios = list(found.ratios.values()) if found else []
    return ratio_text(ratios[1]) if len(ratios) > 1 else ""


def _seconds(value: float | str | None) -> str:
    return duration(value) if isinstance(value, float) else value or ""


def _grouped(count: int | None) -> str:
    return "" if count is None else f"{count:,}".replace(",", " ")


def _table(rows: list[list[str]], head: list[str]) -> str:
    """A table without the columns that hold nothing."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    body = [[row[i] for i in kept] for row in rows]
    return tabulate.tabulate(body, [head[i] for i in kept], tablefmt="simple", disable_numparse=True)

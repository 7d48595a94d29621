"""Draws a run as one page of HTML, which `page.html` lays out; beside it, if there is one, an earlier run.

`parts.html` has what is the same on the page of versions, which `comparisons.py` draws.

What a model says is never markup: jinja2 escapes every text, and codes stand for control characters. The page reads
without scripts; they filter it, and show the numbers behind a cell. It fetches nothing.
"""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.errors import counted, some
from conformance.figures.atlas import KINDS, Comparison
from conformance.figures.crossover import crossover
from conformance.figures.speed import Speed
from conformance.figures.speed import speeds as known_speeds
from conformance.judging import resuming
from conformance.records.cell import STATUSES, Cell, Measure, Verdict
from conformance.records.measurements import Ratio
from conformance.records.plan import NOTHING_GIVEN, Plan, PlannedCell, SpecLocation
from conformance.show import bench, matrix
from conformance.show.text import ratio_text, visible
from conformance.store.run_files import LINES, Contents
from conformance.torch_versions import VERSIONS
from conformance.verdict import failed_gate

LARGEST = 700_000  # bytes of curves and of what scripts know of the cells; a page of 1 000 cells has less than 1 MB
PANEL = 2_000  # bytes of the curves of one model, device and precision
LONGEST, SHORT = 500, 60  # characters of a text, and of the words in a square
BUDGET_AT, FARTHEST = 70.0, 3.0  # percent of a bar that are the budget, and the powers of ten over it at the bar's end
FASTEST = 8.0  # the end of the axis of speeds; its start is as many times slower
WIDE, HIGH = 200, 100  # pixels in which curves are drawn
BESIDE, CAP, LABEL = 5, 2, 34  # pixels between the marks of two modes, of half the end of an interval, of a label

Said = list[tuple[str, list["Square"]]]  # a text, and the cells that say it


@dataclass(frozen=True)
class Square:
    """A cell as the page draws it.

    Attributes:
        looks: the class of its looks, the status and whether it is red.
        glyph, word, marks: what the table of `show.matrix` says of it.
        bar: how far its bar reaches, in percent; None if nothing was measured.
        interval: that of its speed, start and end in percent of the axis; None if it has none.
        changes, was: kinds of `atlas.KINDS`, and the cell in the earlier run.
    """

    number: int
    cell: Cell
    verdict: Verdict
    looks: str
    glyph: str
    word: str
    marks: tuple[str, ...]
    bar: float | None
    speed: str
    interval: tuple[float, float] | None
    changes: tuple[str, ...] = ()
    was: "Square | None" = None


def draw(
    contents: Contents,
    *,
    folder: Path | None,
    green: bool,
    earlier: tuple[Contents, Comparison] | None = None,
    compact: bool = False,
) -> str:
    """The page of a run.

    Args:
        contents: what is stored of the run.
        folder: the run folder; None: it is not kept.
        green: everything is as expected.
        earlier: an earlier run, and what has changed since.
        compact: without scripts, and so without the numbers behind cells: for a notebook.
    """
    values = _Drawing(contents, folder, earlier).values(with_data=not compact)
    return fill("page.html", **values, green=green, compact=compact)


def fill(template: str, **values: object) -> str:
    """A template of this folder with these values."""
    import jinja2  # noqa: PLC0415 -- it takes a tenth of a second, and most commands make no page

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    engine = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shown, trim_blocks=True
    )
    engine.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return engine.get_template(template).render(values)


def _shown(value: object) -> object:
    """What the template prints: a text so that nothing in it commands, and without the middle of a long one."""
    return _bounded(value) if type(value) is str else value


def _bounded(text: str, most: int = LONGEST) -> str:
    return visible(text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}")


class _Drawing:
    """What the template needs of a run."""

    def __init__(self, contents: Contents, folder: Path | None, earlier: tuple[Contents, Comparison] | None) -> None:
        self._contents, self._folder, self._plan = contents, folder, contents.plan
        self._found = earlier[1] if earlier else None
        chosen = set(contents.selected)
        self._cells = [p for p in self._plan.cells if p.id in chosen]
        self._speeds = known_speeds(contents) if self._plan.measure else {}
        self._curves = bench.curves(contents) if self._plan.measure == "bench" else []
        self._notes: matrix.Footnotes = {}
        self._squares = _squares(contents, self._cells, self._speeds, self._notes)
        if earlier:
            before, found = earlier
            speeds = known_speeds(before) if before.plan.measure else {}
            old = _squares(before, [p for p in self._cells if p.id in before.verdicts], speeds, {})
            for name, square in self._squares.items():
                kinds = tuple(change.kind for change in found.changes if change.cell == name)
                self._squares[name] = replace(square, changes=kinds, was=old.get(name))
        self._wordless: list[str] = []  # the cells of which the scripts know no numbers

    def values(self, *, with_data: bool) -> dict[str, Any]:
        """The variables of the template."""
        plan, squares = self._plan, list(self._squares.values())
        data = self._data() if with_data else {}
        verdicts = [square.verdict for square in squares]
        right = [p for p in self._cells if not plan.models[p.cell.model].wrong_on_purpose] or self._cells
        wrong = [p for p in self._cells if plan.models[p.cell.model].wrong_on_purpose] if right != self._cells else []
        declared: dict[Any, list[str]] = {note: [] for note in self._notes}
        for verdict in verdicts:
            declared.get(matrix.footnote(verdict), []).append(verdict.cell)
        return {
            "title": f"{counted(len(squares), 'cell')} of {some(list(plan.models))}",
            "about": list(filter(None, [plan.judge.day, *matrix.header(plan).split(" · "), str(self._folder or "")])),
            "counts": [(name, STATUSES[name], n) for name, n in Counter(v.status for v in verdicts).items()],
            "total": len(squares),
            "red": sum(verdict.red for verdict in verdicts),
            "incomplete": list(self._incomplete()),
            "causes": [(c, STATUSES[c.status].glyph, self._said(c.cells)) for c in matrix.causes(verdicts)],
            "tables": [*self._tables(right, ""), *self._tables(wrong, matrix.HEAD)],
            "declared": [(self._notes[note], *note, self._said(cells)) for note, cells in declared.items()],
            "remarks": [line.removeprefix("· ") for line in matrix.remarks(plan, verdicts, self._speeds)],
            "legend": matrix.legend(self._speeds, plan),
            "marks": sorted({why for verdict in verdicts for why in matrix.marks(verdict).values()}),
            **_curves(self._curves),
            "found": self._found,
            "changes": self._changes(),
            "data": data,
        }

    def _incomplete(self) -> Iterator[str]:
        """What the page does not show of the run, a sentence each."""
        contents, plan = self._contents, self._plan
        completes = "" if contents.changed else " completes it"
        again = f"; {resuming.next_step(self._folder, plan, contents.changed)}{completes}" if self._folder else ""
        if contents.missing:
            yield f"{counted(len(contents.missing), 'cell')} not judged: {some(contents.missing, 3)}{again}"
        elif contents.has_all and not contents.complete and self._folder:
            yield f"the run did not end{again}"
        if contents.torn_bytes:
            yield f"the last line of {LINES} is unfinished, {contents.torn_bytes} bytes were left out"
        if plan.shard:
            own = f"{len(plan.cells)} of {counted(plan.shard.cells, 'cell')}"
            yield f"this is shard {plan.shard}, {own}; conformance merge joins the shards"
        if plan.lacks:
            yield f"{plan.lacks} missing: conformance merge joins all of them into a new run"
        if len(self._cells) < len(plan.cells):
            yield f"{len(self._cells)} of {counted(len(plan.cells), 'planned cell')} were chosen"
        for device in dict.fromkeys(p.cell.device for p in self._cells):
            judged = [self._squares[p.id].verdict for p in self._cells if p.cell.device == device]
            if all(verdict.status == "SKIPPED" for verdict in judged):
                yield f"{device}: {counted(len(judged), 'cell')} skipped, {judged[0].text}"
        yield from filter(None, [matrix.left_out(plan, self._cells)])
        if self._wordless:
            yield f"the numbers of {counted(len(self._wordless), 'cell')} had no room: {some(self._wordless, 3)}"

    def _tables(self, cells: Sequence[PlannedCell], title: str) -> list[dict[str, Any]]:
        """The table of each device. A model's candidates stand in columns after the modes."""
        tables = []
        for device in dict.fromkeys(p.cell.device for p in cells):
            rows: dict[tuple[str, str], dict[str, Square]] = {}
            for planned in (p for p in cells if p.cell.device == device):
                cell, own = planned.cell, self._plan.models[planned.cell.model].candidates
                column = f"candidate {own.index(cell.mode) + 1}" if cell.mode in own else cell.mode
                rows.setdefault((cell.model, cell.precision), {})[column] = self._squares[planned.id]
            names = dict.fromkeys(name for row in rows.values() for name in row)
            columns = sorted(names, key=lambda name: name.startswith("candidate "))
            body = [(*row, [squares.get(name) for name in columns]) for row, squares in rows.items()]
            tables.append({"title": title, "device": device, "columns": columns, "rows": body})
        return tables

    def _said(self, cells: Iterable[str]) -> Said:
        found: dict[str, list[Square]] = {}
        for name in cells:
            found.setdefault(self._squares[name].verdict.text, []).append(self._squares[name])
        return list(found.items())

    def _changes(self) -> list[tuple[str, str, list[Any]]]:
        every = self._found.changes if self._found else ()
        found = {kind: [(one, self._squares.get(one.cell)) for one in every if one.kind == kind] for kind in KINDS}
        return [(kind, KINDS[kind], changes) for kind, changes in found.items() if changes]

    def _data(self) -> dict[str, Any]:
        """What the scripts know; where room is scarce, the numbers of red cells come first."""
        table, cells = _Table(), {}
        for square in sorted(self._squares.values(), key=lambda square: not square.verdict.red):
            has_room = table.size + PANEL * len(self._curves) < LARGEST
            self._wordless += [] if has_room else [square.cell.id]
            cells[square.number] = table.cell(square, table.tensors(square.verdict) if has_room else None)
        commands = {name: _command(self._plan, name) for name in self._plan.models}
        versions = f"{VERSIONS[0]}..{self._plan.environment.torch.partition('+')[0]}"
        return {
            "table": table.entries,
            "cells": [cells[number] for number in range(len(cells))],
            "commands": commands,
            "modes": {mode: _sources(place) for mode, place in self._plan.modes.items()},
            "folder": visible(str(self._folder or "")),
            "versions": visible(versions),
        }


def _squares(
    contents: Contents, cells: Iterable[PlannedCell], speeds: Mapping[str, Speed], notes: matrix.Footnotes
) -> dict[str, Square]:
    """The cells as a run has them, by id."""
    squares = {}
    for number, (name, cell) in enumerate((p.id, p.cell) for p in cells):
        verdict = contents.verdicts.get(name, Verdict(name, "NOTRUN", short="not run"))
        glyph, _, word = matrix.sign(verdict, notes).partition(" ")
        speed = speeds.get(name)
        ratio = next(iter(speed.ratios.values()), None) if speed else None
        squares[name] = Square(
            number=number,
            cell=cell,
            verdict=verdict,
            looks=f"{verdict.status.lower()}{' red' * verdict.red}",
            glyph=glyph,
            word=_bounded(word, SHORT),
            marks=tuple(matrix.marks(verdict)),
            bar=None if verdict.margin is None else _reach(verdict.margin),
            speed=_bounded(matrix.timing(speed, contents.plan.working_size(cell)), SHORT),
            interval=(_on_axis(ratio.low), _on_axis(ratio.high)) if ratio else None,
        )
    return squares


def _reach(margin: float) -> float:
    """How far a bar reaches, in percent: evenly up to the budget, and beyond it by powers of ten."""
    powers = min(math.log10(margin), FARTHEST) if margin > 1 else 0.0
    return round(BUDGET_AT * min(margin, 1.0) + (100 - BUDGET_AT) * powers / FARTHEST, 1)


def _on_axis(ratio: float) -> float:
    """Where a speed lies on its axis, in percent: by powers, with 1 in the middle."""
    return round(50 + 50 * max(-1.0, min(1.0, math.log(ratio, FASTEST))), 1)


def _curves(every: Sequence[bench.Curves]) -> dict[str, Any]:
    """What the template draws of the curves of a bench; both axes are by powers, and that of speeds is all panels'."""
    modes = list(dict.fromkeys(mode for one in every for mode in one.modes))
    ratios = [point.ratio for one in every for points in one.modes.values() for point in points if point.ratio]
    top = max([1, *(math.ceil(abs(math.log2(end))) for ratio in ratios for end in (ratio.low, ratio.high))])
    shown = [power for power in range(-top, top + 1) if power % math.ceil(top / 3) == 0]
    powers = [(_height(2.0**power, top), f"{2**power}" if power >= 0 else f"1/{2**-power}") for power in shown]
    return {"modes": modes, "powers": powers, "panels": [(one, *_panel(one, modes, top)) for one in every]}


def _panel(one: bench.Curves, modes: Sequence[str], top: int) -> tuple[list[Any], list[Any]]:
    """The places of sizes with their labels, and of each mode its place among all, its paths, and what they say."""
    sizes = sorted({point.size for points in one.modes.values() for point in points})
    along = {size: round(WIDE * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0]), 1) for size in sizes}
    labels, lines = [(along[sizes[-1]], sizes[-1])], []
    for size in reversed(sizes[:-1]):
        labels += [(along[size], size)] if along[size] <= labels[-1][0] - LABEL else []
    for mode, points in one.modes.items():
        place = modes.index(mode)
        left = BESIDE * (place - (len(modes) - 1) / 2)  # so that one interval does not hide another
        paths = _paths([(along[point.size] + left, point.ratio) for point in points], top)
        numbers = ", ".join(f"{p.size} {ratio_text(p.ratio) if p.ratio else p.verdict}" for p in points)
        lines.append((place, *paths, f"{mode}: {numbers}", f"{mode} {crossover(points, one.size_name)}"))
    return labels, lines


def _paths(places: Iterable[tuple[float, Ratio | None]], top: int) -> tuple[str, str]:
    """The path of SVG through ratios, broken where there is none, and that of their intervals."""
    through, spans, pen = "", "", "M"
    for x, ratio in places:
        if ratio:
            through += f"{pen}{x:.1f} {_height(ratio.middle, top)}"
            low, high = _height(ratio.low, top), _height(ratio.high, top)
            spans += f"M{x - CAP:.1f} {low}h{2 * CAP}m-{CAP} 0V{high}m-{CAP} 0h{2 * CAP}"
        pen = "L" if ratio else "M"
    return through, spans


def _height(ratio: float, top: int) -> float:
    """Where a ratio lies between two to the power of `top` and of -`top`, in pixels from above."""
    return round(HIGH / 2 * (1 - math.log2(ratio) / top), 1)


def _sources(place: SpecLocation) -> list[str]:
    return list(map(visible, resuming.sources_of(place)))


def _command(plan: Plan, name: str) -> list[str]:
    """What judges a model again, without its axes; what `bisect` wants before a cell; what `explain` wants behind it.

    The first is "" for a call of a script.
    """
    location = plan.models[name].location
    own = location.own or NOTHING_GIVEN
    source = f"{location.name}:{own.thing}" if own.thing else location.name
    places = [name if location.is_of_zoo else source, *(m.name for m in plan.modes.values() if not m.is_of_zoo)]
    words = list(dict.fromkeys(places))
    words += [word for text in own.inputs for word in ("--input", text)]
    words += ["--reference", own.reference.source] if own.reference else []
    words += [resuming.TRUST] if location.needs_trust else []
    words += [f"--{own.training}"] if own.training else []
    words += [] if location.own or location.is_of_zoo else ["-k", name]
    words += ["--seed", str(plan.seed)] if plan.seed else []
    again = "" if own.call else shlex.join(["conformance", "run", *words])
    return [visible(again), "" if location.is_of_zoo else visible(f"{source}::"), *_sources(location)]


class _Table:
    """What the scripts know, each text and each measure once: cells name them by their places.

    Attributes:
        entries: texts, and measures as [gate, value, budget, detail, 1 if it is not met]. A measure that is 0 and says
            nothing is the text of its gate.
        size: bytes of it as JSON.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.size = 0
        self._places: dict[Any, int] = {}

    def _place(self, key: Any, entry: Any) -> int:
        if key not in self._places:
            self._places[key] = len(self.entries)
            self.entries.append(entry)
            self._count(entry)
        return self._places[key]

    def _count(self, stored: Any) -> None:
        self.size += len(json.dumps(stored, separators=(",", ":")))

    def _text(self, text: str) -> int:
        return self._place(text, _bounded(text))

    def _texts(self, texts: Iterable[str]) -> list[int]:
        return [self._text(text) for text in texts]

    def _measure(self, one: Measure) -> int:
        if one.value == one.budget == 0.0 and not one.detail:
            return self._text(one.gate)
        numbers = [number if math.isfinite(number) else str(number) for number in (one.value, one.budget)]
        entry = [self._text(one.gate), *numbers, self._text(one.detail), int(not one.met)]
        return self._place(tuple(entry), entry)

    def cell(self, square: Square, numbers: list[Any] | None) -> list[Any]:
        """A cell, in the order in which the scripts take it apart."""
        cell, verdict, seen = square.cell, square.verdict, square.verdict.observation
        first = verdict.text.partition("  ")[0]  # the gate of a verdict that names one
        gates = [failed.gate for one in seen.discrepancies if (failed := failed_gate(one))]
        gates += [first] if first.isidentifier() else []
        largest = [f"{gate} {matrix.figure(margin)}" for gate, margin in seen.rest.margins.items()] if seen.rest else []
        stored = [
            self._texts([cell.model, cell.mode, cell.precision, cell.device, square.looks, square.speed]),
            self._texts([verdict.reason, verdict.link]),
            self._texts(dict.fromkeys(gates)),
            self._texts(square.changes),
            self._texts(verdict.notes),
            self._texts(seen.said),
            self._texts(f"{name}: {value}" for name, value in seen.facts.items()),
            numbers,
            [seen.rest.count if seen.rest else 0, self._texts(largest)],
            verdict.seconds,
        ]
        self._count(stored)
        return stored

    def tensors(self, verdict: Verdict) -> list[Any]:
        """The tensors of a cell, first those that are farthest over budgets. Cases with equal numbers are one row."""
        rows: dict[tuple[int, int, tuple[int, ...]], list[str]] = {}
        worst: dict[tuple[int, int, tuple[int, ...]], float] = {}
        for seen in verdict.observation.discrepancies:
            failed = failed_gate(seen)
            more = [failed] if failed and failed.gate == "dtype" else []  # which is no measure of the tensor's
            places = tuple(map(self._measure, (*seen.measures, *more)))
            row = self._text(str(seen.tensor)), self._text(seen.dtype), places
            rows.setdefault(row, []).append(seen.case)
            worst[row] = max((one.margin for one in (*seen.measures, *more)), default=0.0)
        ordered = sorted(rows, key=lambda row: -worst[row])
        return [[tensor, dtype, self._texts(rows[tensor, dtype, places]), places] for tensor, dtype, places in ordered]

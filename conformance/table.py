"""Draws a run as text: the matrix, every red cell on one line, the declared divergences as footnotes."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tabulate

from conformance.interval import FASTER, NOISY, SAME, SLOWER, Ratio
from conformance.records import STATUSES, Speed, Verdict
from conformance.speed import completed
from conformance.speed import speeds as known_speeds
from conformance.store import Contents, cell_id

WIDTH = 100
ARROWS = {FASTER: "▲", SLOWER: "▼", SAME: "=", NOISY: "~"}
LEGEND = """
Speed beside eager fp32, whose time is given: ▲ faster, ▼ slower, = the same within 3 %, ~ too noisy to say; in
brackets the 99 % interval. Timed is {figures}, of the first case, on one thread.
"""
FIGURES = {
    "forward": "forward",
    "gradient": "forward and backward",
    "fit": "the whole training, of trainings",
    "step": "a training step",
}


def line(verdict: Verdict) -> str:
    """A finished cell on one line."""
    status = STATUSES[verdict.status]
    figure = "" if verdict.margin is None else _figure(verdict.margin)
    return f"{status.glyph} {verdict.cell:<58} {verdict.status:<12} {figure:>8} {verdict.seconds:6.2f} s"


def measured_line(contents: Contents, job: str) -> str:
    """A finished measurement on one line: with the speeds that it completed, if it did."""
    found = completed(contents, job)
    return "◷ " + ("  ".join(f"{speed.cell} {visible(speed_text(speed))}" for speed in found) or job)


def speed_text(speed: Speed) -> str:
    """The ratio to the first baseline; of the baseline itself its time; otherwise why there is none."""
    if speed.seconds is None:
        return speed.reason.partition(":")[0]
    if not speed.ratios:
        return duration(speed.seconds)
    return ratio_text(next(iter(speed.ratios.values())))


def ratio_text(ratio: Ratio) -> str:
    """A ratio with its verdict and its interval."""
    middle, low, high = (_digits(value) for value in (ratio.middle, ratio.low, ratio.high))
    return f"{ARROWS[ratio.verdict]}{middle} [{low}, {high}]"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def render(contents: Contents, *, folder: Path, seconds: float | None = None) -> str:
    """The whole report.

    Args:
        contents: of the run folder.
        folder: where it is, for the last line.
        seconds: wall time of the session; None where it is not known.
    """
    selected = set(contents.selected)
    cells = [c for c in contents.plan["cells"] if cell_id(c) in selected]
    verdicts = {name: contents.verdicts.get(name, Verdict(name, "NOTRUN", short="not run")) for name in selected}
    devices = dict.fromkeys(c["device"] for c in cells)
    speeds = known_speeds(contents) if contents.plan["measure"] else {}
    notes: dict[tuple[str, str, str], int] = {}
    parts = [header(contents.plan)]
    for device in devices:
        shown = [c for c in cells if c["device"] == device]
        judged = [verdicts[cell_id(c)] for c in shown]
        if all(v.status == "SKIPPED" for v in judged):
            parts.append(f"{device}: {len(judged)} cells skipped, {judged[0].text}")
        else:
            parts.append(_matrix(shown, verdicts, speeds, notes, device if len(devices) > 1 else ""))
    parts.append(_legend(speeds))
    ordered = [verdicts[cell_id(c)] for c in cells]
    red = [v for v in ordered if v.red and v.status != "NOTRUN"]
    parts.append("\n".join(f"{STATUSES[v.status].glyph} {v.cell}  {v.status}  {visible(v.text)}" for v in red))
    parts.append("\n".join(_footnote(number, *note) for note, number in notes.items()))
    parts.append("\n".join([*_remarks(ordered), *without_speed("speed", speeds)]))
    parts.append(_totals(ordered, folder, seconds))
    return "\n\n".join(part for part in parts if part)


def header(plan: dict[str, Any]) -> str:
    """Where the run took place."""
    known = plan["environment"]
    gpus = "".join(f" · {name}" for name in dict.fromkeys(known["gpus"]))
    return (
        f"torch {known['torch']} · Python {known['python']} · {known['threads_per_cell']} thread per cell · "
        f"{known['cpu']} {known['cpu_capability']}{gpus} · seed {plan['seed']}"
    )


def _matrix(
    cells: list[dict[str, Any]],
    verdicts: dict[str, Verdict],
    speeds: dict[str, Speed],
    notes: dict[tuple[str, str, str], int],
    device: str,
) -> str:
    modes = list(dict.fromkeys(c["mode"] for c in cells))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell in cells:
        row = rows.setdefault((cell["model"], cell["precision"]), {})
        row[cell["mode"]] = _square(verdicts[cell_id(cell)], speeds.get(cell_id(cell)), notes)
    body, last = [], ""
    for (model, precision), row in rows.items():
        body.append(["" if model == last else model, precision, *(row.get(mode, "") for mode in modes)])
        last = model
    text = tabulate.tabulate(body, headers=["model", "precision", *modes], tablefmt="simple", disable_numparse=True)
    return f"{device}\n{text}" if device else text


def _square(verdict: Verdict, speed: Speed | None, notes: dict[tuple[str, str, str], int]) -> str:
    judged = _judged(verdict, notes)
    if speed is None or (speed.seconds is None and speed.reason.startswith(verdict.status)):
        return judged
    return f"{judged}  {visible(speed_text(speed))}"


def _legend(speeds: dict[str, Speed]) -> str:
    figures = dict.fromkeys(s.figure for s in speeds.values() if s.figure)
    return LEGEND.strip().format(figures=", or ".join(FIGURES[f] for f in FIGURES if f in figures)) if figures else ""


def without_speed(figure: str, speeds: Mapping[str, Speed]) -> list[str]:
    """Why green cells have no figure of that name, each reason once."""
    why: dict[str, list[str]] = {}
    for speed in speeds.values():
        if speed.reason and not speed.reason.startswith(tuple(STATUSES)):
            why.setdefault(speed.reason.partition(":")[0], []).append(speed.cell)
    lines = []
    for short, cells in why.items():
        detail = speeds[cells[0]].reason.partition(": ")[2]
        more = f" ({visible(detail)})" if detail else ""
        lines.append(_wrapped(f"· no {figure}, {visible(short)}: {_some(cells)}{more}"))
    return lines


def _judged(verdict: Verdict, notes: dict[tuple[str, str, str], int]) -> str:
    status = STATUSES[verdict.status]
    if verdict.status == "PASS":
        return f"{status.glyph} {_figure(verdict.margin or 0.0)}"
    mark = ""
    if verdict.reason:
        kind = "unsupported" if verdict.status == "UNSUPPORTED" else "stale" if verdict.red else "expected"
        number = notes.setdefault((kind, verdict.reason, verdict.link), len(notes) + 1)
        mark = f" ({number})"
    return f"{status.glyph} {visible(verdict.short)}{mark}"


def _figure(margin: float) -> str:
    """The worst error over its budget: two digits, and never 0.00 for what is not zero."""
    if margin == 0.0:
        return "0"
    return f"{margin:.2f}" if 0.005 <= margin < 1000 else f"{margin:.0e}"  # noqa: PLR2004 -- a display range


def _footnote(number: int, kind: str, reason: str, link: str) -> str:
    return _wrapped(f"({number}) {kind}: {visible(reason)}") + (f"\n    {visible(link)}" if link else "")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _remarks(verdicts: list[Verdict]) -> list[str]:
    """What green cells still have to say, each thing once."""
    said: dict[str, list[str]] = {}
    for verdict in verdicts:
        for note in () if verdict.red else verdict.notes:
            said.setdefault(note, []).append(verdict.cell)
    return [_wrapped(f"· {visible(note)}: {_some(cells)}") for note, cells in said.items()]


def _some(cells: list[str]) -> str:
    return cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"


def _totals(verdicts: list[Verdict], folder: Path, seconds: float | None) -> str:
    counts = Counter(v.status for v in verdicts)
    counted = ", ".join(f"{counts[name]} {name.lower()}" for name in STATUSES if counts[name])
    took = "" if seconds is None else f" · {seconds:.0f} s"
    unfinished = f"\nincomplete: conformance run --resume {folder}" if counts["NOTRUN"] else ""
    return f"{len(verdicts)} cells: {counted}{took} · run stored in {folder}{unfinished}"


def visible(text: str) -> str:
    """Text that a terminal cannot take for a command: control and direction characters are spelt out."""
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else f"\\u{ord(c):04x}" for c in text
    )

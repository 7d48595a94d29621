"""What a calibration counted, and the tables it prints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from conformance.axes import PRECISIONS
from conformance.records import Cell, Verdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

UNDAMAGED = "nothing"
RIVALS = ("assert_close", "dynamo same", "flash-attention")
VALUE_GATES = ("norm", "null", "slice", "gain", "pointwise", "precision")
SHOWN = 60  # rows of a long list

Key = tuple[str, str]  # mode, precision
Place = tuple[str, str, str]  # and gate or damage
Row = list[Any]


@dataclass
class Results:
    """Everything counted, by (mode, precision) where that matters."""

    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)
    margins: dict[Place, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    kills: dict[Place, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    survivors: list[dict[str, Any]] = field(default_factory=list)
    accepted: Counter[tuple[str, ...]] = field(default_factory=Counter)
    weak: Counter[tuple[str, ...]] = field(default_factory=Counter)
    tensors: Counter[Key] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, cell: Cell, seed: int, verdict: Verdict, answer: dict[str, Any]) -> None:
        """Count one cell."""
        key = (cell.mode, cell.precision)
        for found in verdict.observation.discrepancies:
            where = f"{cell.id} seed {seed}, {found.tensor}, case {found.case}"
            self.tensors[key] += found.kind not in ("absent", "empty")
            for canary in found.accepted:
                self.accepted[(*key, cell.model, found.tensor, found.case, canary)] += 1
            for canary in found.weak:
                self.weak[(*key, cell.model, found.tensor, _kind_of(canary))] += 1
            for measure in found.measures:
                gate = "null" if found.kind == "null" and measure.gate == "norm" else measure.gate
                if gate in VALUE_GATES:
                    self.margins[(*key, gate)].append((measure.margin, where))
        for damage, counts in answer.get("damages", {}).items():
            self.kills[(*key, damage)].update(counts)
        names = ("damage", "case", "tensor", "kind", "size", "margin")
        for values in answer.get("survivors", ()):
            self.survivors.append({**vars(cell), "seed": seed, **dict(zip(names, values, strict=True))})
        bare = Verdict(verdict.cell, verdict.status, verdict.text)  # without the observation it rests on
        self.verdicts.append((seed, bare))


def _kind_of(canary: str) -> str:
    return re.sub(r"slice \d+ of", "a slice of", canary)


def print_tables(plan: dict[str, Any], options: argparse.Namespace, results: Results, spent: float) -> None:
    """Print every table of the calibration as Markdown."""
    host = plan["environment"]
    about = f"{len(plan['models'])} models, {options.seeds} seeds, {len(results.verdicts)} cells"
    print(f"# The judge, calibrated\n\n{about} in {spent:.0f} s with {options.jobs} jobs; ", end="")
    print(f"torch {host['torch']}, {host['cpu']}.\n")
    print("Median wall seconds of a cell, damages included: ", end="")
    print(", ".join(f"{mode} {np.median(walls):.2f}" for mode, walls in results.seconds.items()))
    _print_alarms(results)
    _print_margins(results)
    _print_kills(results)
    _print_survivors(results)
    _print_canaries(results)
    _print_rivals(results)


def _print_alarms(results: Results) -> None:
    counts: dict[Key, Counter[str]] = defaultdict(Counter)
    alarms: dict[tuple[str, str, str], list[tuple[int, str]]] = defaultdict(list)
    for seed, verdict in results.verdicts:
        counts[_key_of(verdict.cell)].update(["cells", verdict.status, *(["red"] if verdict.red else [])])
        if verdict.red:
            place = verdict.text.partition(":")[0]
            alarms[verdict.cell, verdict.status, place].append((seed, verdict.text))
    others = ("PASS", "EXPECTED", "UNSUPPORTED")
    rows = [[*key, c["cells"], c["red"], *(c[o] for o in others)] for key, c in counts.items()]
    _table("(a) False alarms", ["mode", "precision", "cells", "red", *others], sorted(rows))
    listed = [[*who[:2], _seeds([s for s, _ in found]), found[0][1]] for who, found in sorted(alarms.items())]
    _table("Each of them", ["cell", "verdict", "seeds", "text, of the first seed"], listed)


def _print_margins(results: Results) -> None:
    rows = []
    for (mode, precision, gate), found in results.margins.items():
        values = [value for value, _ in found]
        worst, where = max(found)
        median, high = np.percentile(values, [50, 99])
        rows.append([mode, precision, VALUE_GATES.index(gate), gate, len(values), median, high, worst, where])
    header = ["mode", "precision", "gate", "tensors", "median", "99 %", "largest", "of"]
    _table("(b) Value over budget", header, [[*r[:2], *r[3:]] for r in sorted(rows)])


def _print_kills(results: Results) -> None:
    rows = []
    for damage in _damages(results):
        cells = [_sum(results, damage, {precision}) for precision in _precisions(results)]
        gates = sum(cells, Counter[str]())
        seen = {g: n for g, n in gates.most_common() if g not in ("tried", "killed", *RIVALS)}
        said = ", ".join(f"{gate} {count}" for gate, count in seen.items())
        rows.append([damage, *(_share(c, "killed") for c in cells), said])
    _table("(c) Kills: rejected/tried, all modes", ["damage", *_precisions(results), "gates that said no"], rows)


def _print_survivors(results: Results) -> None:
    """Those of float32 in full; at low precision those that change a tensor by a tenth of it or more."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for s in results.survivors:
        held = "float32" if s["precision"] == "fp32" or s["kind"] != "rounded" else "low precision"
        if held == "float32" or float(s["size"]) >= 0.1:
            groups[held, s["damage"], s["model"]].append(s)
    rows = []
    for group, found in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1], -len(g[1]))):
        cells = sorted({f"{s['mode']}-{s['precision']}" for s in found})
        tensors = Counter(s["tensor"] for s in found).most_common()
        said = ", ".join(f"{tensor} {count}" for tensor, count in tensors[:4])
        said += f" and {len(tensors) - 4} tensors more" if len(tensors) > 4 else ""
        largest = max(found, key=lambda s: float(s["size"]))
        rows.append([*group, len(found), f"{float(largest['size']):.2g}", said, " ".join(cells)])
    header = ["held to", "damage", "model", "times", "largest change", "tensors", "cells"]
    _table("Survivors of interest", header, rows[:SHOWN])
    if len(rows) > SHOWN:
        print(f"and {len(rows) - SHOWN} rows more, in the JSON")


def _print_canaries(results: Results) -> None:
    rows = []
    for key, tensors in sorted(results.tensors.items()):
        counts = (results.accepted, results.weak)
        rows.append([*key, tensors, *(sum(n for k, n in c.items() if k[:2] == key) for c in counts)])
    _table("(d) Canaries", ["mode", "precision", "tensors", "accepted", "weak"], rows)
    listed = [[*key, count] for key, count in results.accepted.most_common()]
    _table("Accepted", ["mode", "precision", "model", "tensor", "case", "canary", "seeds"], listed[:SHOWN])
    listed = [[*key, count] for key, count in results.weak.most_common()]
    _table("Weak", ["mode", "precision", "model", "tensor", "canary", "times"], listed[:20])


def _print_rivals(results: Results) -> None:
    modes = {mode for mode, _, _ in results.kills} - {"eager"} or {"eager"}
    note = f"modes {', '.join(sorted(modes))}"
    if modes == {"eager"}:
        note += "; eager is both candidate and yardstick, the easiest case for a rival"
    for precision in _precisions(results):
        damages = _damages(results, with_none=True)
        counts = {damage: _sum(results, damage, {precision}, modes) for damage in damages}
        rows = [
            [damage, _share(c, "killed"), *(_share(c, rival) for rival in RIVALS)]
            for damage, c in counts.items()
            if c["tried"]
        ]
        _table(f"(e) Rivals, {precision}: rejected/tried, {note}", ["damage", "this judge", *RIVALS], rows)


def _precisions(results: Results) -> list[str]:
    """Those that were tried, in the order of their table."""
    tried = {precision for _, precision, _ in results.kills}
    return [name for name in PRECISIONS if name in tried]


def _damages(results: Results, *, with_none: bool = False) -> Iterator[str]:
    names = dict.fromkeys(damage for _, _, damage in results.kills)
    return (name for name in names if with_none or name != UNDAMAGED)


def _sum(results: Results, damage: str, precisions: set[str], modes: set[str] | None = None) -> Counter[str]:
    total: Counter[str] = Counter()
    for (mode, precision, name), counts in results.kills.items():
        if name == damage and precision in precisions and (modes is None or mode in modes):
            total.update(counts)
    return total


def _share(counts: Counter[str], what: str) -> str:
    return f"{counts[what]}/{counts['tried']}" if counts["tried"] else ""


def _key_of(cell: str) -> Key:
    mode, precision, _ = cell.partition("[")[2].split("-")
    return mode, precision


def _seeds(found: list[int]) -> str:
    return " ".join(map(str, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def _table(title: str, header: list[str], rows: list[Row]) -> None:
    print(f"\n## {title}\n")
    print(tabulate(rows, header, tablefmt="github", floatfmt=".2g", disable_numparse=[0]) if rows else "none")


def as_json(plan: dict[str, Any], options: argparse.Namespace, results: Results) -> dict[str, Any]:
    """Everything counted, for later."""
    return {
        "environment": plan["environment"],
        "models": list(plan["models"]),
        "seeds": options.seeds,
        "verdicts": [[seed, v.cell, v.status, v.text] for seed, v in results.verdicts],
        "largest margins": [[*place, *worst] for place, worst in _worst_by_model(results).items()],
        "kills": [[*key, dict(counts)] for key, counts in results.kills.items()],
        "survivors": results.survivors,
        "canaries accepted": [[*key, n] for key, n in results.accepted.items()],
        "canaries weak": [[*key, n] for key, n in results.weak.items()],
    }


def _worst_by_model(results: Results) -> dict[tuple[str, ...], tuple[float, str]]:
    """Of each mode, precision, gate and model, the largest value over budget and where it was."""
    worst: dict[tuple[str, ...], tuple[float, str]] = {}
    for place, found in results.margins.items():
        for value, where in found:
            key = (*place, where.partition("[")[0])
            worst[key] = max(worst.get(key, (-1.0, "")), (value, where))
    return worst

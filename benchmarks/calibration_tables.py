"""The tables of a calibration, as Markdown, and everything that it counted, as JSON."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from tabulate import tabulate

from benchmarks.results import VALUE_GATES, Key, Results
from benchmarks.tasks import UNDAMAGED
from conformance.axes import PRECISIONS
from conformance.records.cell import model_of
from conformance.records.convert import to_json
from conformance.records.plan import Plan

RIVALS = ("assert_close", "dynamo same", "flash-attention")
SHOWN = 60  # rows of a long list

Row = list[Any]


def print_tables(results: Results) -> None:
    """Print every table of the calibration as Markdown."""
    print("Median wall seconds of a cell, damages included: ", end="")
    print(", ".join(f"{mode} {statistics.median(walls):.2f}" for mode, walls in results.seconds.items()))
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
        middle, high = statistics.median(values), quantile(values, 0.99)
        rows.append([mode, precision, VALUE_GATES.index(gate), gate, len(values), middle, high, worst, where])
    header = ["mode", "precision", "gate", "tensors", "median", "99 %", "largest", "of"]
    _table("(b) Value over budget", header, [[*r[:2], *r[3:]] for r in sorted(rows)])


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as this share of all values.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _print_kills(results: Results) -> None:
    rows = []
    for damage in _damages(results):
        cells = [_sum(results, damage, {precision}) for precision in _precisions(results)]
        gates = sum(cells, Counter[str]())
        seen = {g: n for g, n in gates.most_common() if g not in ("tried", "killed", *RIVALS)}
        named = ", ".join(f"{gate} {count}" for gate, count in seen.items())
        rows.append([damage, *(_share(c, "killed") for c in cells), named])
    _table("(c) Kills: rejected/tried, all modes", ["damage", *_precisions(results), "gates that rejected"], rows)


def _print_survivors(results: Results) -> None:
    """All survivors of float32; at low precision those that change a tensor by a tenth of it or more."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for s in results.survivors:
        held = "float32" if s["precision"] == "fp32" or s["kind"] != "rounded" else "low precision"
        if held == "float32" or float(s["size"]) >= 0.1:
            groups[held, s["damage"], s["model"]].append(s)
    rows = []
    for group, found in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1], -len(g[1]))):
        cells = sorted({f"{s['mode']}-{s['precision']}" for s in found})
        tensors = Counter(s["tensor"] for s in found).most_common()
        named = ", ".join(f"{tensor} {count}" for tensor, count in tensors[:4])
        named += f" and {len(tensors) - 4} tensors more" if len(tensors) > 4 else ""
        largest = max(found, key=lambda s: float(s["size"]))
        rows.append([*group, len(found), f"{float(largest['size']):.2g}", named, " ".join(cells)])
    header = ["held to", "damage", "model", "times", "largest change", "tensors", "cells"]
    _table("Survivors of interest", header, rows[:SHOWN])
    if len(rows) > SHOWN:
        print(f"{len(rows) - SHOWN} more rows are in the JSON file.")


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
        note += "; eager is compared with itself, which is the easiest case for a rival"
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
    """The precisions that were tried, in the order of `PRECISIONS`."""
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


def as_json(plan: Plan, seeds: int, results: Results) -> dict[str, Any]:
    """Everything that was counted."""
    return {
        "environment": to_json(plan.environment),
        "models": list(plan.models),
        "seeds": seeds,
        "verdicts": [[seed, v.cell, v.status, v.text] for seed, v in results.verdicts],
        "largest margins": [[*place, *worst] for place, worst in _worst_by_model(results).items()],
        "kills": [[*key, dict(counts)] for key, counts in results.kills.items()],
        "survivors": results.survivors,
        "canaries accepted": [[*key, n] for key, n in results.accepted.items()],
        "canaries weak": [[*key, n] for key, n in results.weak.items()],
    }


def _worst_by_model(results: Results) -> dict[tuple[str, ...], tuple[float, str]]:
    """By mode, precision, gate and model, the largest value over budget and where it was."""
    worst: dict[tuple[str, ...], tuple[float, str]] = {}
    for place, found in results.margins.items():
        for value, where in found:
            key = (*place, model_of(where))
            worst[key] = max(worst.get(key, (-1.0, "")), (value, where))
    return worst

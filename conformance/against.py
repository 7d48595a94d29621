"""`conformance bench --against REV`: what models cost now, beside what they cost at another revision.

What can be counted decides: more graphs, graph breaks, recompiles, bytes or operations than before are a red result,
and so is whatever was green and counted then and no longer is. Clocks are read beside it and never decide.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tabulate

from conformance import duel, revision, speed
from conformance.axes import UsageError
from conformance.delegate import Delegate, DelegateError
from conformance.duel import Duel
from conformance.records import Cell
from conformance.revision import Side
from conformance.store import cell_id
from conformance.table import FIGURES, duration, ratio_text, visible

COUNTERS = {
    "graphs": "graphs",
    "graph_breaks": "graph breaks",
    "recompiles": "recompiles",
    "saved": "saved bytes",
    "held": "held bytes",
    "peak_forward": "peak bytes, forward",
    "peak": "peak bytes",
    "flops.forward": "FLOPs, forward",
    "flops.both": "FLOPs",
}
BETTER, WORSE = "✓ less", "✗ more"
LEGEND = """
Times of {figures} beside {then}. They never decide.
▲ faster, ▼ slower, = the same within 3 %, ~ too noisy to say; in brackets the 99 % interval.
"""


@dataclass(frozen=True)
class Difference:
    """A counter that is not what it was; None where it could not be taken, which `text` explains."""

    cell: str
    counter: str
    then: int
    now: int | None
    text: str = ""

    @property
    def worse(self) -> bool:
        return self.now is None or self.now > self.then


def main(  # noqa: PLR0913 -- the options of a run
    sources: Sequence[str],
    against: str,
    *,
    modes: Sequence[str] = (),
    precisions: Sequence[str] = (),
    devices: Sequence[str] = (),
    seed: int = 0,
    timeout: float = 300.0,
    speed: bool = True,
) -> int:
    """Compare, and print what differs.

    Args:
        sources: models or folders of the zoo, or files; the whole zoo if there are none.
        against: the other revision, in the repository that the sources lie in.
        modes: only these; all if there are none.
        precisions: likewise.
        devices: likewise.
        seed: of weights, inputs and cotangents.
        timeout: seconds a cell may take.
        speed: whether to time what is green at both.

    Returns: 1 where anything is worse, or was comparable then and is not now; otherwise 0. New models are named.

    Raises:
        UsageError: what was asked for cannot be done.
    """
    task = {"modes": list(modes), "precisions": list(precisions), "devices": list(devices), "seed": seed}
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-against-") as folder:
            new = revision.now(sources)
            old = revision.then(new, against, Path(folder) / "then")
            print(f"against {against} ({old.name})", flush=True)  # noqa: T201 -- this is the interface
            comparison = _Comparison(old, new, {**task, "deadline": timeout}, Path(folder))
            return comparison.report(speed=speed)
    except KeyboardInterrupt:
        return int(pytest.ExitCode.INTERRUPTED)


class _Comparison:
    """Both sides, judged and counted."""

    def __init__(self, old: Side, new: Side, task: dict[str, Any], folder: Path) -> None:
        self._name = old.name
        self._delegate: dict[str, Callable[[], Delegate]] = {}
        with contextlib.ExitStack() as stack:
            new_asked = self._asked("new", new, task, folder, stack)
            old_asked = self._asked("old", old, task, folder, stack)
            self._new = _account("", new_asked)  # what is wrong now is said first
            self._old = _account(f"{old.name}: ", old_asked)
        for source, text in self._new["unknown"].items():
            if source in self._old["unknown"]:
                raise UsageError(text)

    def _asked(self, key: str, side: Side, task: dict[str, Any], folder: Path, stack: contextlib.ExitStack) -> Delegate:
        """A delegate at work on its account."""
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache-{key}"),  # what one compiled is no business of the other
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "CONFORMANCE_PRELOAD": "compiler" if not task["modes"] or "compiled" in task["modes"] else "",
        }
        self._delegate[key] = partial(Delegate, side.path, environment, task["deadline"])
        delegate = stack.enter_context(Delegate(side.path, environment))
        told = {**task, "sources": list(side.sources), "folder": str(folder / f"references-{key}")}
        delegate.tell("conformance.account:give", told)
        return delegate

    def report(self, *, speed: bool) -> int:
        """Print everything; returns the exit code."""
        lost, notes = self._without_comparison()
        cells = self._comparable()
        differences = [d for name in cells for d in self._differences(name)]
        print(f"{len(cells)} cells compared, {len(differences)} counters differ")  # noqa: T201
        parts = [self._counters(differences), "\n".join(map(visible, [*lost, *notes]))]
        print("".join(f"\n{part}\n" for part in parts if part), end="", flush=True)  # noqa: T201
        if speed and cells:
            print(f"\n{self._times(cells)}")  # noqa: T201
        return int(pytest.ExitCode.TESTS_FAILED if lost or any(d.worse for d in differences) else pytest.ExitCode.OK)

    def _comparable(self) -> list[str]:
        """The cells that are green at both, of models whose first case is the same."""
        models = {cell_id(cell): cell["model"] for cell in self._new["plan"]["cells"]}
        both = [name for name in self._new["green"] if name in self._old["green"]]
        return [n for n in both if self._new["cases"][models[n]] == self._old["cases"][models[n]]]

    def _without_comparison(self) -> tuple[list[str], list[str]]:
        """Why what was comparable no longer is, and what else there is no comparison of."""
        then, now = self._old["cases"], self._new["cases"]
        lost = [f"✗ {model}: gone" for model in then if model not in now]
        lost += [
            f"✗ {model}: its first case was {then[model]}, now it is {now[model]}"
            for model in now
            if model in then and then[model] != now[model]
        ]
        notes = [f"· {model}: new" for model in now if model not in then]
        for name, verdict in self._new["verdicts"].items():
            before = self._old["verdicts"].get(name)
            if before is None or verdict["status"] == "SKIPPED":
                continue
            if name in self._old["green"] and name not in self._new["green"]:
                lost.append(f"✗ {name}: was green, now {verdict['status']}  {verdict['text']}")
            elif name not in self._old["green"]:
                notes.append(f"· {name}: was {before['status']}, now {verdict['status']}; not compared")
        return lost, notes

    def _differences(self, name: str) -> Iterator[Difference]:
        then, now = (side["green"][name]["footprint"] for side in (self._old, self._new))
        for counter in COUNTERS:
            before, after = _value(then, counter), _value(now, counter)
            if before is not None and before != after:
                yield Difference(name, counter, before, after, "" if after is not None else _why(now, counter))

    def _counters(self, differences: Sequence[Difference]) -> str:
        rows = []
        for d in sorted(differences, key=lambda d: not d.worse):
            now = f"{d.now:,}" if d.now is not None else f"not counted: {visible(d.text)}"
            rows.append([d.cell, COUNTERS[d.counter], f"{d.then:,}", now, WORSE if d.worse else BETTER])
        return _table(rows, ["cell", "counter", self._name, "now", ""])

    def _times(self, cells: Sequence[str]) -> str:
        taken = [s for d in self._duels(cells) for s in duel.hold(d, self._delegate["old"], self._delegate["new"])]
        rows = []
        for one in taken:
            if one.seconds is None:
                rows.append([one.cell, "", visible(one.reason)])
            else:
                rows.append([one.cell, duration(one.seconds), ratio_text(one.ratios[duel.OLD])])
        figures = ", or ".join(FIGURES[f] for f in dict.fromkeys(s.figure for s in taken))
        legend = LEGEND.strip().format(figures=figures, then=self._name)
        return f"{_table(rows, ['cell', 'now', f'beside {self._name}'])}\n\n{legend}"

    def _duels(self, cells: Sequence[str]) -> Iterator[Duel]:
        """One for each model, precision and device; what a process has scripted once keeps its precision."""
        planned = {cell_id(cell): cell for cell in self._new["plan"]["cells"]}
        groups: dict[tuple[str, str, str], list[str]] = {}
        for name in cells:
            groups.setdefault(tuple(planned[name][axis] for axis in ("model", "precision", "device")), []).append(name)
        for (model, _, _), names in groups.items():
            now, then = (side["plan"]["figures"][model] for side in (self._new, self._old))
            figure = speed.usual([f for f in now if f in then] or now)
            yield Duel(figure, tuple(names), _task(self._old, names, figure), _task(self._new, names, figure))


def _account(whose: str, asked: Delegate) -> dict[str, Any]:
    """What a delegate found.

    Raises:
        UsageError: what was asked for cannot be done.
    """
    try:
        found: dict[str, Any] = asked.answer()
    except DelegateError as problem:
        raise UsageError(f"{whose}{problem}") from None
    if "usage" in found:
        raise UsageError(f"{whose}{found['usage']}")
    return found


def _task(account: Mapping[str, Any], names: Sequence[str], figure: str) -> dict[str, Any]:
    """What a duelist is told."""
    plan = account["plan"]
    members = {}
    for cell in plan["cells"]:
        name = cell_id(cell)
        if name in names:
            told = {"home": plan["models"][cell["model"]], "expect": cell["expect"]}
            members[name] = {"cell": vars(Cell.of(cell)), "reference": account["green"][name]["reference"], **told}
    return {"members": members, "homes": plan["homes"], "figure": figure, "seed": plan["seed"]}


def _value(footprint: Mapping[str, Any], counter: str) -> int | None:
    field, _, part = counter.partition(".")
    found = footprint.get(field)
    value: int | None = (found or {}).get(part) if part else found
    return value


def _why(footprint: Mapping[str, Any], counter: str) -> str:
    why: Mapping[str, str] = footprint.get("why", {})
    return why.get(counter) or why.get(counter.partition(".")[0]) or str(footprint.get("reason", "nobody says why"))


def _table(rows: list[list[str]], head: list[str]) -> str:
    return tabulate.tabulate(rows, head, tablefmt="simple", disable_numparse=True) if rows else ""

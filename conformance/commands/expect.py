"""`conformance expect`: writes the red cells of a run as declared divergences, and takes out those that are stale."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from conformance.commands import output, stored
from conformance.errors import ExitCode, some
from conformance.judging import declarations
from conformance.records.cell import Cell, Verdict
from conformance.show.text import visible
from conformance.verdict import failed_gate, judge, named_failure, not_happened
from zoo.expect import ENDINGS, OUTCOMES, Expect

MATCHED = 60  # characters of an error's message that the declaration matches


def record(folder: Path, file: Path) -> ExitCode:
    """Append a declaration for each red cell of a run to a file; cells that diverge in the same way share one.

    Returns:
        `RED` if a red cell cannot be declared, otherwise `OK`.

    Raises:
        UsageError: the run cannot be read, or the file cannot be written.
    """
    contents = stored.read(folder)
    cells = {planned.id: planned for planned in contents.plan.cells}
    alike: dict[tuple[str, Expect], list[Verdict]] = {}
    lost = []
    judged = [contents.verdicts[cell] for cell in contents.selected if cell in contents.verdicts]
    red = [verdict for verdict in judged if verdict.red]
    for verdict in red:
        known = cells[verdict.cell]
        for one in (found := _declaration(verdict, known.expect)):
            alike.setdefault((known.cell.model, one), []).append(verdict)
        lost += [] if found else [verdict]
    entries = [
        (model, declared, f"{same[0].cell}: {visible(same[0].text)}")
        for (model, one), same in alike.items()
        for declared in _on_axes(one, [cells[verdict.cell].cell for verdict in same])
    ]
    if entries:
        declarations.append(file, entries)
    for verdict in lost:
        output.say(f"{verdict.cell} cannot be declared: {verdict.status}  {verdict.text}")
    output.tell(
        f"entries for {len(red) - len(lost)} of {len(red)} red cells: {len(entries)}, added to {visible(str(file))}"
    )
    if entries:
        output.tell("Give each a reason, remove what should not be accepted, and run with --expect.")
    return ExitCode.RED if lost else ExitCode.OK


def prune(folder: Path, file: Path) -> ExitCode:
    """Take out of a file the declarations that did not happen in any cell of a run made with it.

    One that some cells still need stays, and so does one that concerns no judged cell; both are named or counted.

    Returns:
        `RED` if a declaration is stale in some of its cells only, otherwise `OK`.

    Raises:
        UsageError: the run or the file cannot be read, or the file cannot be written.
    """
    contents = stored.read(folder)
    judged = [planned for planned in contents.plan.cells if planned.id in contents.verdicts and not planned.skip]
    stale, partly, unused = [], [], 0
    for model, entries in declarations.read(file).items():
        for number, one in enumerate(entries):
            cells = [p for p in judged if p.cell.model == model and one in p.expect]
            gone = [p.id for p in cells if _is_stale(contents.verdicts[p.id], one, p.expect)]
            unused += not cells
            if gone and len(gone) == len(cells):
                stale.append((model, number))
            elif gone:
                partly.append(f"entry {number + 1} of {model} is stale in {some(gone)}, and in force in other cells")
    if stale:
        declarations.remove(file, stale)
    for line in partly:
        output.say(line)
    output.tell(f"stale entries taken out of {visible(str(file))}: {len(stale)}")
    if unused:
        output.tell(f"entries that concern no cell of this run, left as they are: {unused}")
    return ExitCode.RED if partly else ExitCode.OK


def _is_stale(verdict: Verdict, one: Expect, known: Sequence[Expect]) -> bool:
    return verdict.status == "STALE" and one in not_happened(verdict.observation, known)


def _declaration(verdict: Verdict, known: Sequence[Expect]) -> tuple[Expect, ...]:
    """The narrowest declarations, beside those that it has, with which the cell is as declared; () if none are."""
    for candidate in _candidates(verdict):
        if not judge(verdict.cell, verdict.observation, (*known, *candidate)).red:
            return candidate
    return ()


def _candidates(verdict: Verdict) -> Iterator[tuple[Expect, ...]]:
    seen, known = verdict.observation, partial(Expect, reason="the reason comes from a person")
    if verdict.status == "ERROR" and seen.error and seen.message:
        match = re.escape(seen.message[:MATCHED])
        yield (known(outcome="refuses", error=seen.error, match=match),)
        yield (known(outcome="ERROR", error=seen.error, match=match),)
    elif verdict.status in OUTCOMES + ENDINGS and verdict.status != "ERROR":
        if verdict.status == "FAIL":
            yield from _of_failures(verdict, known)
        yield (known(outcome=verdict.status),)


def _of_failures(verdict: Verdict, known: Callable[..., Expect]) -> Iterator[tuple[Expect, ...]]:
    failed = [(d, gate) for d in verdict.observation.discrepancies if (gate := failed_gate(d))]
    renamed = dict.fromkeys((str(d.tensor), d.dtype) for d, gate in failed if gate.gate == "dtype")
    yield tuple(known(outcome="dtype", tensor=tensor, dtype=dtype) for tensor, dtype in renamed)
    named = named_failure(verdict)
    first, gate = next(((d, g) for d, g in failed if named and d is named[0]), failed[0])
    yield (known(outcome="FAIL", gate=gate.gate, tensor=str(first.tensor)),)
    yield tuple(known(outcome="FAIL", gate=name) for name in dict.fromkeys(g.gate for _, g in failed))


def _on_axes(one: Expect, cells: Sequence[Cell]) -> Iterator[Expect]:
    """Declarations that together concern exactly these cells: modes that share their precisions share one."""
    precisions: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        precisions.setdefault((cell.mode, cell.device), []).append(cell.precision)
    modes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (mode, device), found in precisions.items():
        modes.setdefault((device, tuple(found)), []).append(mode)
    for (device, named), same in modes.items():
        yield replace(one, modes=tuple(same), precisions=named, devices=(device,))

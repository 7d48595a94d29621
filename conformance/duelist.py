"""What one process of a duel does: prepares its revision of the cells, and takes one sample whenever it is told."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from conformance import reference, timing
from conformance.cell import Phases, Run, set_policy
from conformance.contest import burden, no_recompilation
from conformance.entrant import Entrant
from conformance.records import Cell
from conformance.sources import Home

_entrants: dict[str, Entrant] = {}
_clocks: dict[str, timing.Clock] = {}
_for_good = no_recompilation()


def prepare(task: dict[str, Any]) -> dict[str, str]:
    """Make the cells ready to be timed.

    Args:
        task: "members" (by cell id "cell", "home", "reference" and "expect"), "homes", "figure" and "seed".

    Returns: by cell id, why it cannot be timed.
    """
    set_policy()
    for home in task["homes"]:
        Home(**home).load()
    torch.set_grad_enabled(task["figure"] != "forward")
    unready = {}
    for name, member in task["members"].items():
        try:
            _entrants[name] = _entrant(member, task["seed"], task["figure"])
        except timing.NotMeasuredError as problem:
            unready[name] = str(problem)
        except Exception as problem:  # noqa: BLE001 -- the mode may raise anything
            unready[name] = f"{type(problem).__name__}: {problem}"
    return unready


def _entrant(member: dict[str, Any], seed: int, figure: str) -> Entrant:
    spec = Home(**member["home"]).spec(member["cell"]["model"])
    run = Run(spec, Cell(**member["cell"]), seed, Phases(lambda name: None))  # noqa: ARG005
    known = reference.load(Path(member["reference"]))[spec.cases[0].name]
    return Entrant(run, known, member["expect"], figure)


def warm_up(task: dict[str, Any]) -> None:
    """Call a cell until its time is steady; with "burdened", put a tenth more work behind it."""
    entrant = _entrants[task["cell"]]
    device = entrant.run.cell.device
    if device not in _clocks:
        _clocks[device] = timing.clock_for(device)
    timing.warm_up(entrant.contestant, _clocks[device])
    if task["burdened"]:
        burden(entrant.contestant, device)


def settle(_: None) -> None:
    """From now on nothing is compiled and no garbage collected."""
    gc.collect()
    gc.disable()
    _for_good.__enter__()


def sample(task: dict[str, Any]) -> list[float]:
    """Time a cell once: nanoseconds of a call, of them on the host, and of them waiting for a processor."""
    entrant = _entrants[task["cell"]]
    contestant = entrant.contestant
    taken, result = timing.primed(
        contestant, _clocks[entrant.run.cell.device], timing.priming_calls(contestant.quickest)
    )
    entrant.see(result)
    return [taken.ns, taken.host_ns, taken.delay_ns]


def objection(task: dict[str, Any]) -> str:
    """What is wrong with one of a cell's timed results, drawn by lot; "" if nothing is."""
    return _entrants[task["cell"]].objection()

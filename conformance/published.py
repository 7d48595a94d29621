"""Reads the claims of specs, and plans what must be judged and measured to test them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance import plan, sources
from conformance.axes import DEVICES, UsageError
from conformance.records import Cell
from conformance.sources import Home
from zoo import catalog
from zoo.case import SpecError
from zoo.claim import Claim
from zoo.spec import Spec

Known = tuple[Spec, Home, Claim]


def make(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: the plan that tests the claims of task["sources"], with task["seed"] and task["deadline"].

    Returns: a plan as `plan.make` makes it, of models at sizes, with the "claims" beside it, each as
        `conformance.replication.Published` has it; or {"usage": message} where what was asked for cannot be done.
    """
    enter_phase("plan")
    try:
        known = list(_claims(task["sources"]))
        published = [on_device for one in known for on_device in _published(*one)]
        named = [*task["sources"], *_sources(known)]  # a source may register a mode
        whole = plan.make({**task, "sources": named, **_axes(known), "devices": []}, enter_phase)
        return whole if "usage" in whole else _at_sizes(whole, published)
    except (UsageError, SpecError) as problem:
        return {"usage": str(problem)}


def _claims(asked: list[str]) -> Iterator[Known]:
    """The claims of all sources, in order, each once.

    Raises:
        UsageError: a source makes none.
    """
    seen = set()
    for source in asked or [""]:
        found = [(spec, home) for spec, home in sources.find([source] if source else [])[0] if spec.claims]
        if not found:
            raise UsageError(f"{source or 'the zoo'} makes no claims")
        for spec, home in found:
            if (spec.name, home) not in seen:
                yield from ((spec, home, claim) for claim in spec.claims)
            seen.add((spec.name, home))


def _published(spec: Spec, home: Home, claim: Claim) -> list[dict[str, Any]]:
    """The claim with everything that its spec knows better, for its device, or for each that is here.

    Raises:
        SpecError: variant or baseline cannot be had at its sizes.
    """
    where = f"{spec.name}: claim {claim.text!r}"
    if spec.scale is None:
        raise SpecError(f"{where}: {spec.name} has no scale to measure it on")
    sizes = sorted(set(claim.sizes or spec.scale.sizes))
    try:
        baseline = home.spec(claim.baseline) if claim.baseline else spec
        for size in sizes:
            spec.at(size), baseline.at(size)
    except (catalog.UnknownModelError, SpecError) as problem:
        raise SpecError(f"{where}: {problem}") from problem
    told = {"model": spec.name, "knob": spec.scale.knob, "sizes": sizes, "baseline": baseline.name}
    devices = [claim.device] if claim.device else [device for device in DEVICES if not plan.absence(device)]
    return [{**vars(claim), **told, "device": device} for device in devices]


def _sources(known: list[Known]) -> list[str]:
    """Where the variants and the baselines of all claims come from."""
    found = []
    for spec, home, claim in known:
        own = {other.name for other in catalog.specs_of(home.load())}
        place = home.file or home.module
        found += [place] if (claim.baseline or spec.name) in own else [place, claim.baseline]
    return list(dict.fromkeys(found))


def _axes(known: list[Known]) -> dict[str, list[str]]:
    claims = [claim for _, _, claim in known]
    return {
        "modes": [mode for claim in claims for mode in (claim.mode, claim.baseline_mode)],
        "precisions": [name for claim in claims for name in (claim.precision, claim.baseline_precision)],
    }


def _at_sizes(whole: dict[str, Any], published: list[dict[str, Any]]) -> dict[str, Any]:
    """The cells that the claims compare, out of a plan of their models at no size.

    Raises:
        UsageError: a claim names no device, and one that is here lacks its mode or precision.
    """
    axes = ("model", "mode", "precision", "device")
    planned = {tuple(cell[axis] for axis in axes): cell for cell in whole["cells"]}
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for claim in published:
        sides = (
            (claim["baseline"], claim["baseline_mode"], claim["baseline_precision"], claim["device"]),
            (claim["model"], claim["mode"], claim["precision"], claim["device"]),
        )
        for side in sides:
            if side not in planned:
                cell = Cell(*side).id
                raise UsageError(f"{claim['model']}: claim {claim['text']!r}: there is no {cell}; name a device")
        for size in claim["sizes"]:
            for side in sides:
                name = f"{side[0]}@{size}"
                cells.setdefault((name, *side[1:]), {**planned[side], "model": name})
    homes = {cell["model"]: whole["models"][cell["model"].partition("@")[0]] for cell in cells.values()}
    return {**whole, "models": homes, "cells": list(cells.values()), "claims": published}

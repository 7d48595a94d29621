"""Reads the claims of specs, and plans what must be judged and measured to test them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance import plan, sources
from conformance.axes import UsageError
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
        published = [_published(*one) for one in known]
        named = [*task["sources"], *_sources(known)]  # a source may register a mode
        whole = plan.make({**task, "sources": named, **_axes(known), "devices": []}, enter_phase)
    except (UsageError, SpecError) as problem:
        return {"usage": str(problem)}
    return whole if "usage" in whole else _at_sizes(whole, published)


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


def _published(spec: Spec, home: Home, claim: Claim) -> dict[str, Any]:
    """The claim with everything that its spec knows better.

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
    return {
        **vars(claim),
        "model": spec.name,
        "knob": spec.scale.knob,
        "sizes": sizes,
        "baseline": baseline.name,
        "device": claim.device or "cpu",
    }


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
    """The cells that the claims compare, out of a plan of their models at no size."""
    axes = ("model", "mode", "precision", "device")
    planned = {tuple(cell[axis] for axis in axes): cell for cell in whole["cells"]}
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for claim in published:
        sides = (
            (claim["baseline"], claim["baseline_mode"], claim["baseline_precision"], claim["device"]),
            (claim["model"], claim["mode"], claim["precision"], claim["device"]),
        )
        for size in claim["sizes"]:
            for side in sides:
                name = f"{side[0]}@{size}"
                cells.setdefault((name, *side[1:]), {**planned[side], "model": name})
    homes = {cell["model"]: whole["models"][cell["model"].partition("@")[0]] for cell in cells.values()}
    return {**whole, "models": homes, "cells": list(cells.values()), "claims": published}

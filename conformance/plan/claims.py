"""Reads the claims of specs, and plans what must be judged and measured to test them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from conformance.axes import DEVICES
from conformance.errors import UsageError
from conformance.plan import find, matrix
from conformance.plan.find import spec_at
from conformance.records.cell import Cell
from conformance.records.claims import PublishedClaim
from conformance.records.plan import Plan, PlannedCell, SpecLocation
from conformance.records.tasks import PlanRequest
from conformance.run.child_side import ChildProcess
from zoo import catalog
from zoo.case import SpecError
from zoo.claim import Claim
from zoo.spec import Spec

Known = tuple[Spec, SpecLocation, Claim]


def make(task: PlanRequest, process: ChildProcess) -> Plan:
    """Child process: plan the cells that test the claims of the request's sources, at all sizes of the claims.

    Args:
        task: sources, seed and deadline; the claims name the modes, precisions and devices.
        process: this process.

    Raises:
        UsageError: a source is unknown, or a claim cannot be tested as it is.
    """
    process.enter("plan")
    try:
        known = list(_claims(task.sources))
        published = [on_device for one in known for on_device in _published(*one)]
        named = (*task.sources, *_sources(known))  # a source may register a mode
        claims = [claim for _, _, claim in known]
        whole = matrix.plan(
            replace(
                task,
                sources=named,
                modes=tuple(mode for claim in claims for mode in (claim.mode, claim.baseline_mode)),
                precisions=tuple(name for claim in claims for name in (claim.precision, claim.baseline_precision)),
                devices=(),
            ),
            DEVICES,
        )
        return _at_sizes(whole, published)
    except SpecError as problem:
        raise UsageError(str(problem)) from problem


def _claims(asked: Iterable[str]) -> Iterator[Known]:
    """The claims of all sources, in order, each once.

    Raises:
        UsageError: a source makes none.
    """
    seen = set()
    for source in asked or [""]:
        found = [(spec, location) for spec, location in find.find([source] if source else [])[0] if spec.claims]
        if not found:
            raise UsageError(f"{source or 'the zoo'} makes no claims")
        for spec, location in found:
            if (spec.name, location) not in seen:
                yield from ((spec, location, claim) for claim in spec.claims)
            seen.add((spec.name, location))


def _published(spec: Spec, location: SpecLocation, claim: Claim) -> list[PublishedClaim]:
    """The claim with the names and sizes from its spec, once for its device, or for each device that is present.

    Raises:
        SpecError: variant or baseline does not exist at its sizes.
    """
    where = f"{spec.name}: claim {claim.text!r}"
    if spec.scale is None:
        raise SpecError(f"{where}: {spec.name} has no scale to measure it on")
    sizes = tuple(sorted(set(claim.sizes or spec.scale.sizes)))
    try:
        baseline = spec_at(location, claim.baseline) if claim.baseline else spec
        for size in sizes:
            spec.at(size), baseline.at(size)
    except (catalog.UnknownModelError, SpecError) as problem:
        raise SpecError(f"{where}: {problem}") from problem
    devices = [claim.device] if claim.device else [device for device in DEVICES if not matrix.why_absent(device)]
    own = {"model": spec.name, "size_name": spec.scale.size_name, "sizes": sizes, "baseline": baseline.name}
    return [PublishedClaim(**{**vars(claim), **own, "device": device}) for device in devices]


def _sources(known: list[Known]) -> list[str]:
    """The sources of the variants and baselines of all claims."""
    found = []
    for spec, location, claim in known:
        own = {other.name for other in catalog.specs_of(find.load(location))}
        found += [location.name] if (claim.baseline or spec.name) in own else [location.name, claim.baseline]
    return list(dict.fromkeys(found))


def _at_sizes(whole: Plan, published: list[PublishedClaim]) -> Plan:
    """The plan of the cells that the claims compare, from a plan of their models at no size.

    Raises:
        UsageError: a claim names no device, and one that is present lacks its mode or precision.
    """
    planned = {p.cell: p for p in whole.cells}
    cells: dict[Cell, PlannedCell] = {}
    models: dict[str, SpecLocation] = {}
    for claim in published:
        sides = (claim.baseline_cell, claim.variant_cell)
        for side in (cell() for cell in sides):
            if side not in planned:
                raise UsageError(f"{claim.model}: claim {claim.text!r}: there is no {side.id}; name a device")
        for size in claim.sizes:
            for cell in sides:
                sized = cell(size)
                cells.setdefault(sized, replace(planned[cell()], cell=sized))
                models[sized.model] = whole.models[cell().model]
    return replace(whole, models=models, cells=tuple(cells.values()), claims=tuple(published))

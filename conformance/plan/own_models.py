"""Plans models that have no spec: finds them, calls each once, and leaves out the modes that they do not exist in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conformance.axes import PRECISIONS, Mode
from conformance.cache.sources import digest
from conformance.errors import UsageError
from conformance.own.trial import tried
from conformance.plan import candidates, find
from conformance.records.plan import SpecLocation
from conformance.records.tasks import PlanRequest
from zoo.spec import Spec


def found(asked: PlanRequest) -> tuple[list[find.Found], dict[str, SpecLocation]]:
    """The specs of the sources, or of the one model without a spec that is judged in their place; see `find.find`."""
    if asked.registered is not None:
        find.load_registering(asked.registered)
    if asked.own is not None:
        return [(find.spec_at(asked.own, ""), asked.own)], find.registering()
    return find.find(asked.sources, asked.given)


def tried_all(specs: Sequence[find.Found], seed: int) -> tuple[list[find.Found], dict[str, tuple[str, ...]]]:
    """The same specs, those of models without one with the contracts that a call shows, and these contracts in words.

    Raises:
        UsageError: a model cannot be built, or does not take its inputs.
    """
    known, assumed = [], {}
    for spec, location in specs:
        if location.own is None:
            known.append((spec, location))
            continue
        own, assumed[spec.name] = tried(location.own, find.module_of(location), seed)
        place = replace(location, own=own)
        known.append((find.spec_at(place, ""), place))
    return known, assumed


def modes_of(spec: Spec, location: SpecLocation, asked: Sequence[str]) -> dict[str, Mode]:
    """The modes of a model by name, without those that it does not exist in: a training needs gradients.

    Raises:
        SpecError: a candidate has the name of a mode.
        UsageError: it exists in none of the modes that were asked for.
    """
    without = location.own.without if location.own else ()
    if asked and set(asked) <= set(without):
        raise UsageError(f"{location.name} ({spec.summary}) has no mode {', '.join(asked)}")
    known = candidates.modes_of(spec)
    return {n: mode for n, mode in known.items() if n not in without and not (mode.forward_only and spec.fit)}


def precisions_of(spec: Spec, location: SpecLocation, chosen: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The precisions of a model, among those that were chosen.

    A model in half precision has no others, and it is judged as it is unless another was asked for. A training and an
    exported program cannot be cast.

    Args:
        spec: the spec of the model.
        location: where it is.
        chosen: names of precisions.
        asked: those among them that the user named.

    Raises:
        UsageError: a model in half precision has none of the precisions that were asked for.
    """
    if spec.dtype != "float32":
        known = tuple(p.name for p in PRECISIONS.values() if p.low_dtype == spec.dtype)
        found = tuple(p for p in known if p in asked or (not asked and PRECISIONS[p].cast))
        if not found:
            raise UsageError(f"{spec.name} is in {spec.dtype}, so want {' or '.join(known)}, got {', '.join(asked)}")
        return found
    without = location.own.without if location.own else ()
    return tuple(p for p in chosen if not (PRECISIONS[p].cast and (spec.fit is not None or p in without)))


def digests(specs: Sequence[find.Found]) -> dict[str, str]:
    """The digests of saved models and of their inputs, by path."""
    paths = [path for _, location in specs if location.own for path in location.paths]
    return {path: content for path in paths if (content := digest(Path(path)))}

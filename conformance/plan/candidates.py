"""Knows which modes a model has: those of every model, and its own candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.axes import MODES, Mode
from conformance.errors import UsageError
from zoo.case import SpecError
from zoo.spec import Spec


def modes_of(spec: Spec) -> dict[str, Mode]:
    """The modes of a model by name: every mode, then the candidates of its spec.

    Raises:
        SpecError: a candidate has the name of a mode.
    """
    own = {}
    for candidate in spec.candidates:
        if candidate.name in MODES:
            raise SpecError(f"{spec.name}: candidate {candidate.name!r} has the name of a mode")
        own[candidate.name] = Mode(candidate.name, devices=candidate.devices, compiles=candidate.compiles)
    return MODES | own


def modes_of_all(specs: Iterable[Spec]) -> dict[str, Mode]:
    """The modes of all models by name. A candidate that several models have is here once, on the devices of all.

    Raises:
        SpecError: a candidate has the name of a mode.
    """
    found = dict(MODES)
    for mode in (mode for spec in specs for mode in modes_of(spec).values()):
        known = found.setdefault(mode.name, mode)
        everywhere = not (known.devices and mode.devices)
        devices = () if everywhere else tuple(dict.fromkeys((*known.devices, *mode.devices)))
        found[mode.name] = Mode(
            mode.name,
            known.warm_calls,
            known.prepare,
            devices,
            default=known.default,
            compiles=known.compiles or mode.compiles,
            forward_only=known.forward_only,
        )
    return found


def check_sized(asked: Sequence[str], specs: Sequence[Spec], sized: Sequence[Spec]) -> None:
    """Refuse a candidate that was asked for and that no planned model has, because it has no `build_at`.

    Args:
        asked: the names that the user gave.
        specs: the specs that were found.
        sized: the same at the sizes of their scales, which are planned.

    Raises:
        UsageError: there is one; the message names it and its model.
    """
    left = {candidate.name for spec in sized for candidate in spec.candidates}
    for spec in specs:
        for candidate in spec.candidates:
            if candidate.name in asked and candidate.name not in left:
                raise UsageError(
                    f"mode {candidate.name!r} is a candidate of {spec.name} without build_at, so a bench, which takes "
                    f"{spec.name} at the sizes of its scale, has no {candidate.name}"
                )

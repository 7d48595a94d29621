"""Finds the file and line at which a spec is written, so that a report can point there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from conformance.plan import find
from conformance.records.cell import SizedModel
from conformance.records.plan import Place, SpecLocation
from zoo.spec import Spec


def places_of(found: Iterable[find.Found]) -> dict[str, Place]:
    """The places of specs in their sources, by the specs' names; without those whose module has no source file.

    Args:
        found: specs, each with its location, which this process has imported.
    """
    places = {spec.name: _place(spec.name, location) for spec, location in found}
    return {name: place for name, place in places.items() if place}


def _place(model: str, location: SpecLocation) -> Place | None:
    """The line on which a source names a spec; its first one if the name is not written there."""
    sized = SizedModel.parse(model)
    name = sized.model if sized else model
    module = sys.modules.get(location.module) if location.module else find.module_of(location)
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or not file.endswith(".py"):
        return None
    if location.own:
        return Place(str(Path(file).resolve()), _defined(location.own.thing, _lines(file)))
    return Place(str(Path(file).resolve()), _line(name, _lines(file), _variables(name, module)))


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()


def _variables(name: str, module: ModuleType) -> list[str]:
    """The variables of a module that hold the spec of that name, alone or in a tuple."""
    held = [(key, value if isinstance(value, tuple) else (value,)) for key, value in vars(module).items()]
    return [re.escape(key) for key, values in held if any(isinstance(v, Spec) and v.name == name for v in values)]


def _defined(thing: str, lines: tuple[str, ...]) -> int:
    """The line that defines a class, a function or a variable; the first one if none does."""
    pattern = rf"\s*(class|def) {re.escape(thing)}\b|{re.escape(thing)}\s*[:=]"
    return next((number for number, text in enumerate(lines, 1) if re.match(pattern, text)), 1)


def _line(name: str, lines: tuple[str, ...], variables: list[str]) -> int:
    quoted = rf"(['\"]){re.escape(name)}\1"
    assigned = [rf"^({'|'.join(variables)})\b.*="] if variables else []
    for pattern in (rf"\bname\s*=\s*{quoted}", quoted, *assigned):
        for number, text in enumerate(lines, 1):
            if re.search(pattern, text):
                return number
    return 1

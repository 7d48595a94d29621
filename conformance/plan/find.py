"""Finds the specs that the user names: models of the zoo, files, modules."""

import contextlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from conformance import axes, errors
from conformance.cache import sources
from conformance.errors import UsageError
from conformance.evaluate import process_state
from conformance.own import forms
from conformance.own.part import part_of
from conformance.own.spec import attribute, spec_of, with_others
from conformance.process.child_side import ChildProcess
from conformance.records.plan import NOTHING_GIVEN, OtherModel, OwnModel, SpecLocation, name_from
from conformance.records.tasks import ListedModel, Listing, PlanRequest
from zoo import Spec, SpecError, catalog

SAVED = (".pt", ".pth", ".pt2", ".onnx")  # so end saved models; any other file that exists is taken for one too
FILE = "conformance_source_"  # how the names of modules begin that were imported from a file

_folders: list[str] = []  # those that the import of files has added to the path
_registering: dict[str, SpecLocation] = {}  # the source of each mode that a source has registered in this process


def load(location: SpecLocation) -> ModuleType:
    """Import a module or a file. A file is imported once per process, and its folder is appended to `sys.path`.

    Raises UsageError if the module or file does not import.
    """
    try:
        return _load_file(Path(location.file)) if location.file else importlib.import_module(location.module)
    except BaseException as problem:  # noqa: BLE001 -- a script may leave with SystemExit when it is imported
        raise UsageError(f"{location.name} does not import: {errors.describe_error(problem)}") from None


def load_registering(location: SpecLocation) -> ModuleType:
    """Import a module or a file, and note that the modes it registers come from there; UsageError as of `load`."""
    before = set(axes.MODES)
    loaded = load(location)
    _registering.update(dict.fromkeys(set(axes.MODES) - before, location))
    return loaded


def registering() -> dict[str, SpecLocation]:
    """The source of each mode that a source has registered in this process."""
    return dict(_registering)


def module_of(location: SpecLocation) -> ModuleType | None:
    """The module or file of a location, imported; None for a saved model. Raises UsageError if it does not import."""
    return load(location) if location.module or location.file else None


def load_sources(sources: Iterable[SpecLocation]) -> None:
    """Import the sources of a cell, which register its mode. Raises UsageError if a source does not import."""
    for source in sources:
        load(source)


def spec_at(location: SpecLocation, name: str) -> Spec:
    """The spec of that name, from its own module or from the zoo; "name@64", "name@rows=3" is the model at sizes.

    A model without a spec has one location to itself. A part of a model has the name of the part.

    Raises:
        UsageError: the module does not import.
        UnknownModelError: neither has a spec of that name.
        SpecError: a size was named that the model does not have.
    """
    if location.part:
        return part_of(spec_at(replace(location, part=None), location.part.model), location.part)
    if location.own:
        return with_others(spec_of(location.own, module_of(location))[0], *others_of(location.own))
    own = {spec.name: spec for spec in catalog.specs_of(load(location))}
    plain, at, size = name.partition("@")
    if plain in own:
        return own[plain].sized(size) if at else own[plain]
    return catalog.get_spec(name)


def others_of(own: OwnModel) -> tuple[Spec | None, Spec | None]:
    """The specs of the reference and of the candidate of a model without a spec; None for what it lacks.

    Raises UsageError if a name of them is unknown, or names several models.
    """
    return _spec_beside("reference", own.reference, own), _spec_beside("candidate", own.candidate, own)


def _spec_beside(role: str, other: OtherModel | None, own: OwnModel) -> Spec | None:
    if other is None:
        return None
    given = replace(own, name="", thing="", saved="", library="", reference=None, candidate=None, trusted=other.trusted)
    try:
        specs = [spec for spec, _ in _find_one(other.source, given)]
    except UsageError as problem:
        raise UsageError(f"the {role}: {problem}") from problem
    if len(specs) != 1:
        raise UsageError(f"the {role}: {other.source} has {len(specs)} models; name the one that is meant")
    return specs[0]


def _load_file(path: Path) -> ModuleType:
    name = f"{FILE}{path.stem}_{zlib.crc32(os.fsencode(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file in it can hide a module of the standard library
        _folders.append(folder)
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


Found = tuple[Spec, SpecLocation]


def find(sources: Iterable[str], given: OwnModel = NOTHING_GIVEN) -> tuple[list[Found], dict[str, SpecLocation]]:
    """Find the specs of all sources. What the import of one leaves behind in this process is put back for the next.

    A source is a model or folder of the zoo, such as "merge" or "models", or a wildcard pattern of models, folders and
    files, such as "merge*" or "ops.soft*"; "path/to/file.py", "package.module", either of them with ":NAME", a saved
    model, an architecture of a library, or a name that an installed package declares. Behind "@" stands a size, or
    sizes. Without any source, it is the whole zoo.
    A source may hold no spec if it registers a mode. `given` is what was said of the models without a spec.

    Returns each spec with its location, in order, and the location that registers each mode, by the mode's name. Raises
    UsageError if a source is unknown, does not import, or has neither spec nor mode; if two specs share a name; or if
    inputs are given, and every model has a spec.
    """
    found: list[Found] = []
    only_modes = True
    for source in sources:
        names = _names_in_the_zoo(source)
        if names:
            found += _of_the_zoo(names)
            only_modes = False
            continue
        with _import_apart(source):
            own = _find_at_size(source, given)
        found += own
        only_modes = only_modes and not own
    if only_modes:
        found = _of_the_zoo(_names_in_the_zoo("*"))
    _check_names(found)
    if given != NOTHING_GIVEN and not any(location.own for _, location in found):
        raise UsageError(
            "inputs, --reference, --train, --eval and --trust are for a model without a spec; every model here has one"
        )
    return list({spec.name: (spec, location) for spec, location in found}.values()), registering()


def _names_in_the_zoo(source: str) -> list[str]:
    """The models of the zoo in a folder, or those that a wildcard pattern names; [] if `source` is neither.

    A name with a dot and without a wildcard is a module of Python: people have a package `models` of their own. Raises
    UsageError if the pattern names nothing.
    """
    wild = any(mark in source for mark in "*?[") and not forms.is_named(source)
    if (wild or "." not in source) and source != "*" and catalog.is_module(source):
        return catalog.list_models(module=source)
    if not wild:
        return []
    names = [*catalog.list_models(source), *catalog.list_models(source, module=catalog.WRONG_ON_PURPOSE)]
    if not names and not source.endswith(".py"):
        raise UsageError(f"no model, folder or file of the zoo matches {source!r}")
    return names


@contextlib.contextmanager
def _import_apart(source: str) -> Iterator[None]:
    """Put back what an import switched, and hide the modules of another source's folder, which may have equal names."""
    own = str(Path(source).resolve().parent) if source.endswith(".py") else ""
    others = [folder for folder in _folders if folder != own] if own else []
    for folder in others:
        sys.path[:] = [entry for entry in sys.path if entry != folder]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not name.startswith(FILE) and str(Path(file).parent) in others:
            sys.modules[f"{FILE}hidden_{id(module):x}"] = sys.modules.pop(name)  # still known as imported
    with process_state.keep_switches():
        yield


def _check_names(found: list[Found]) -> None:
    for spec, location in found:
        for other, elsewhere in found:
            if other is not spec and other.name == spec.name:
                raise UsageError(f"two models are named {spec.name!r}: in {location.name} and in {elsewhere.name}")


def _of_the_zoo(names: list[str]) -> list[Found]:
    return [(catalog.get_spec(name), SpecLocation(catalog.home_of(name))) for name in names]


def _find_one(source: str, given: OwnModel) -> list[Found]:
    """The specs of one source that is no part of the zoo, or its model without a spec."""
    file, name = _split(source)
    if file:
        location = _file_at(Path(file).resolve(), file)
    elif source.endswith(SAVED) or Path(source).is_file():
        own = replace(given, name=name_from(Path(source).stem), saved=str(Path(source).resolve()))
        return [_own(SpecLocation(own=own))]
    elif forms.is_named(source):
        name = name_from(source.partition("?")[0].partition(":")[2])
        return [_own(SpecLocation(own=replace(given, name=name, library=source, training=given.training or "eval")))]
    elif ":" in source or "." in source:
        module, _, name = source.partition(":")
        location = SpecLocation(module)
    else:
        place = sources.place_of(source)
        try:
            spec = catalog.get_spec(source)
        except (catalog.UnknownModelError, SpecError) as problem:
            if place:
                return _find_one(place, given)
            raise UsageError(str(problem)) from problem
        if place:
            raise UsageError(f"{source!r} is a model of the zoo, and a package declares it as {place}; name the module")
        return [(spec, SpecLocation(catalog.home_of(source)))]
    loaded = load_registering(location)
    if name and not isinstance(found := attribute(loaded, name), Spec):
        return [_own(replace(location, own=replace(given, name=name_from(name), thing=name)))]
    specs = [found] if name else catalog.specs_of(loaded)
    if not specs and location not in _registering.values():
        raise UsageError(
            f"{source} defines no zoo.Spec and registers no mode; to check a model without a spec, name it: "
            f"{source}:NAME --input 2,3"
        )
    return [(spec, location) for spec in specs]


def _find_at_size(source: str, given: OwnModel) -> list[Found]:
    """The specs of one source; of "nets.py@rows=3,n=1" those that have these sizes, at them. SpecError if none has."""
    named = re.fullmatch(r"(?P<place>.*[.:].*)@(?P<size>(\w+=\d+,)*\w+=\d+|\d+)", source)
    if not named or Path(source).exists():
        return _find_one(source, given)
    sized, problems = [], []
    for spec, location in _find_one(named["place"], given):
        try:
            sized.append((spec.sized(named["size"]), location))
        except SpecError as problem:
            problems.append(problem)
    if not sized:
        raise problems[0]
    return sized


def _file_at(path: Path, given: str) -> SpecLocation:
    if not path.is_file():
        raise UsageError(f"no file {given}")
    return SpecLocation(file=str(path))


def _split(source: str) -> tuple[str, str]:
    """File and name in "path/to/file.py:NAME"; "" for both if it is none. UsageError if no name is beside a colon."""
    if source.startswith(":") or source.endswith(":"):
        raise UsageError(f"{source!r}: no name is beside the colon; leave it out, or name a model, as in nets.py:NET")
    if source.endswith(".py"):
        return source, ""
    stem, ends, name = source.rpartition(".py:")
    return (f"{stem}.py", name) if ends and name else ("", "")


def _own(location: SpecLocation) -> Found:
    return spec_at(location, ""), location


def list_models(task: PlanRequest, process: ChildProcess) -> Listing:
    """Child process: list the models of the request's sources; UsageError if one is unknown or does not import."""
    process.enter("list")
    try:
        specs = [spec for spec, _ in find(task.sources)[0]]
    except SpecError as problem:
        raise UsageError(str(problem)) from problem
    return Listing(tuple(ListedModel(s.name, s.summary, tuple(case.name for case in s.cases)) for s in specs))

"""Finds the specs a person names: models of the zoo, files, modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from conformance.axes import MODES, UsageError
from zoo import catalog
from zoo.case import SpecError
from zoo.spec import Spec


@dataclass(frozen=True)
class Home:
    """Where a spec can be imported from, in any process.

    Attributes:
        module: an importable module's name, or "".
        file: the absolute path of a file, or "".
    """

    module: str = ""
    file: str = ""

    def load(self) -> ModuleType:
        """Import the module; a file is imported once per process, its folder appended to the path.

        Raises:
            UsageError: it does not import.
        """
        try:
            return _load_file(Path(self.file)) if self.file else importlib.import_module(self.module)
        except Exception as problem:
            where = self.file or self.module
            raise UsageError(f"{where} does not import: {type(problem).__name__}: {problem}") from problem

    def spec(self, name: str) -> Spec:
        """The spec of that name: this module's own, or the zoo's; "name@64" at that size.

        Raises:
            UnknownModelError: neither has it.
        """
        own = {spec.name: spec for spec in catalog.specs_of(self.load())}
        plain, _, size = name.partition("@")
        if plain in own:
            return own[plain].at(int(size)) if size else own[plain]
        return catalog.get_spec(name)


def _load_file(path: Path) -> ModuleType:
    name = f"conformance_source_{path.stem}_{zlib.crc32(str(path).encode()):x}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file beside it can hide a module of the standard library
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


def find(sources: list[str]) -> tuple[list[tuple[Spec, Home]], list[Home]]:
    """The specs of all sources in order, and the homes to import in every process.

    Args:
        sources: model names or folders of the zoo, "path/to/file.py", "package.module" or
            "package.module:NAME"; empty for the whole zoo. A source may hold no spec if it registers a mode.

    Raises:
        UsageError: unknown, does not import, holds nothing of use, or two specs share a name.
    """
    found: list[tuple[Spec, Home]] = []
    homes: list[Home] = []
    only_modes = True
    for source in sources:
        if f"zoo.{source}" in catalog.FOLDERS:
            found += _of_the_zoo(catalog.list_models(module=source))
            only_modes = False
            continue
        specs, home = _find_one(source)
        found += [(spec, home) for spec in specs]
        only_modes = only_modes and not specs
        if not home.module.startswith("zoo."):
            homes.append(home)
    if only_modes:
        found = _of_the_zoo([*catalog.list_models(), *catalog.list_models(module=catalog.WRONG_ON_PURPOSE)])
    for spec, home in found:
        for other, other_home in found:
            if other is not spec and other.name == spec.name:
                raise UsageError(f"two models are named {spec.name!r}: in {_where(home)} and in {_where(other_home)}")
    return list({spec.name: (spec, home) for spec, home in found}.values()), homes


def _of_the_zoo(names: list[str]) -> list[tuple[Spec, Home]]:
    return [(catalog.get_spec(name), Home(catalog.home_of(name))) for name in names]


def _where(home: Home) -> str:
    return home.file or home.module


def _find_one(source: str) -> tuple[list[Spec], Home]:
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise UsageError(f"no file {source}")
        home, name = Home(file=str(path)), ""
    elif ":" in source or "." in source:
        module, _, name = source.partition(":")
        home = Home(module=module)
    else:
        try:
            spec = catalog.get_spec(source)
        except (catalog.UnknownModelError, SpecError) as problem:
            raise UsageError(str(problem)) from problem
        return [spec], Home(catalog.home_of(source))
    modes = len(MODES)
    loaded = home.load()
    specs = [getattr(loaded, name, None)] if name else catalog.specs_of(loaded)
    if any(not isinstance(spec, Spec) for spec in specs):
        raise UsageError(f"{source}: {name} is no zoo.Spec")
    if not specs and len(MODES) == modes:
        raise UsageError(f"{source} defines no zoo.Spec and registers no mode")
    return [spec for spec in specs if isinstance(spec, Spec)], home

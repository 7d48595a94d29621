"""The catalogue of models: it walks the zoo's folders for specs, lists their names and returns them by name.

Each spec is defined in the file of the class or function it describes; there is no separate list.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType

from zoo.arguments import want_instances, want_string
from zoo.case import SpecError, UnknownNameError
from zoo.spec import Spec

FOLDERS = ("zoo.models", "zoo.ops", "zoo.functions", "zoo.training", "zoo.counterexamples")
WRONG_ON_PURPOSE = "counterexamples"

_registered: dict[str, Spec] = {}


class UnknownModelError(UnknownNameError):
    """The zoo has no model or no module of this name."""


def specs_of(module: ModuleType) -> list[Spec]:
    """Return the specs of a module in file order: every module-level `Spec`, alone or in a tuple.

    Raises:
        TypeError: `module` is no module.

    >>> from zoo.models import merge
    >>> [spec.name for spec in specs_of(merge)]
    ['merge', 'merge_tiled']
    """
    want_instances("specs_of", ModuleType, module=module)
    found: list[Spec] = []
    for value in vars(module).values():
        members = value if isinstance(value, tuple) else (value,)
        found += [member for member in members if isinstance(member, Spec) and member not in found]
    return found


@cache
def _walked() -> dict[str, tuple[Spec, str]]:
    """The spec and the module of each model, by its name."""
    catalogue: dict[str, tuple[Spec, str]] = {}
    for folder in FOLDERS:
        package = importlib.import_module(folder)
        for entry in sorted(pkgutil.iter_modules(package.__path__, f"{folder}."), key=lambda m: m.name):
            if entry.name.endswith(".__main__"):
                continue
            try:
                specs = specs_of(importlib.import_module(entry.name))
            except Exception as problem:
                raise SpecError(f"{entry.name} does not import: {type(problem).__name__}: {problem}") from problem
            if not specs:
                raise SpecError(f"{entry.name} defines no Spec")
            for spec in specs:
                if spec.name in catalogue:
                    raise SpecError(f"{spec.name!r} is defined in both {catalogue[spec.name][1]} and {entry.name}")
                catalogue[spec.name] = (spec, entry.name)
    return catalogue


@cache
def _aliases() -> dict[str, str]:
    """The name of each model that has a second one, by the second."""
    aliases: dict[str, str] = {}
    for name, (spec, home) in _walked().items():
        if spec.alias in _walked() or spec.alias in aliases:
            raise SpecError(f"{home}: the alias {spec.alias!r} of {name} is the name of another model")
        if spec.alias:
            aliases[spec.alias] = name
    return aliases


def register(spec: Spec, *, override: bool = False) -> Spec:
    """Add a spec from outside the zoo's folders, for this process, and return it.

    Args:
        spec: the spec.
        override: it may take the place of a spec of its name, registered or of the zoo.

    Raises:
        SpecError: another spec already has the name, also as its alias, and `override` is False.
        TypeError: `spec` is no `Spec`.

    >>> import zoo
    >>> zoo.register(zoo.get_spec("merge"))
    Traceback (most recent call last):
    zoo.errors.SpecError: 'merge' is already registered; override=True replaces it in this process
    """
    want_instances("register", Spec, spec=spec)
    want_instances("register", bool, override=override)
    if is_model(spec.name) and not override:
        raise SpecError(f"{spec.name!r} is already registered; override=True replaces it in this process")
    _registered[spec.name] = spec
    return spec


def list_models(
    filter: str | Sequence[str] = "*",  # noqa: A002 -- timm's name for it
    *,
    exclude: str | Sequence[str] = (),
    module: str = "*",
) -> list[str]:
    """List the names of the models, sorted.

    Args:
        filter: one or more wildcard patterns; a name is listed if any of them matches.
        exclude: one or more wildcard patterns; a name is left out if any of them matches.
        module: list only the models of this folder or file, such as "models" or "ops.softmax"; a wildcard pattern too.
            Models that are wrong on purpose are listed only under "counterexamples".

    Returns:
        The names, for `create_model`, `example_inputs`, `get_spec` and `conformance run`.

    Raises:
        UnknownModelError: no folder and no file of the zoo matches `module`.
        TypeError: an argument is no string and no sequence of strings.
        SpecError: a file of the zoo does not import, or two files define one name. Every function here raises it.

    >>> import zoo
    >>> zoo.list_models("merge*")
    ['merge', 'merge_tiled']
    >>> zoo.list_models("soft*", exclude="*naive", module="ops.softmax")
    ['softmax']
    >>> zoo.list_models(module="opps")
    Traceback (most recent call last):
    zoo.catalog.UnknownModelError: no folder and no file of the zoo matches 'opps'; did you mean ops?
    """
    wanted, unwanted = _patterns("filter", filter), _patterns("exclude", exclude)
    want_string("list_models", module=module)
    homes = {name: home.removeprefix("zoo.") for name, (_, home) in _walked().items()}
    inside = {name for name, home in homes.items() if _is_inside(home, module)}
    if not inside:
        raise UnknownModelError(f"no folder and no file of the zoo matches {module!r}{_near(module, _modules())}")
    if module == "*":
        inside |= set(_registered)
    return sorted(
        name
        for name in inside
        if any(fnmatchcase(name, p) for p in wanted)
        and not any(fnmatchcase(name, p) for p in unwanted)
        and (module.startswith(WRONG_ON_PURPOSE) or not homes.get(name, "").startswith(WRONG_ON_PURPOSE))
    )


def _patterns(argument: str, value: str | Sequence[str]) -> list[str]:
    patterns = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for pattern in patterns:
        want_string("list_models", **{argument: pattern})
    return patterns


def _is_inside(home: str, module: str) -> bool:
    return fnmatchcase(home, module) or fnmatchcase(home, f"{module}.*")


def _modules() -> list[str]:
    homes = [home.removeprefix("zoo.") for _, home in _walked().values()]
    return sorted({*homes, *(home.partition(".")[0] for home in homes)})


def is_module(name: str) -> bool:
    """Whether a folder or a file of the zoo matches a name or a wildcard pattern, such as "ops" or "ops.soft*".

    Raises:
        TypeError: the name is no string.

    >>> is_module("ops.softmax"), is_module("softmax")
    (True, False)
    """
    want_string("is_module", name=name)
    return any(_is_inside(module, name) for module in _modules())


def is_model(name: str) -> bool:
    """Whether a name, or an alias, is that of a model, registered or of the zoo, so that `create_model` takes it.

    Raises:
        TypeError: the name is no string.

    >>> is_model("softmax"), is_model("conv_bn_classifier"), is_model("ops.softmax")
    (True, True, False)
    """
    want_string("is_model", name=name)
    return name in _registered or _aliases().get(name, name) in _walked()


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def get_spec(name: str) -> Spec:
    """Return the spec of a model by its name or its alias; also at a size of its scale or at sizes of its family.

    These stand behind the name, as in "merge@256" and "softmax@rows=3,n=1".

    Raises:
        UnknownModelError: there is no such model; the message offers the nearest names.
        TypeError: the name is no string.
        SpecError: the model has no such size.

    >>> import zoo
    >>> zoo.get_spec("merge_tiled").twin
    'merge'
    >>> zoo.get_spec("softmacks")
    Traceback (most recent call last):
    zoo.catalog.UnknownModelError: no model named 'softmacks'; did you mean softmax?
    """
    want_string("get_spec", name=name)
    name, at, size = name.partition("@")
    spec = _registered[name] if name in _registered else _found(name)[0]
    return spec.sized(size) if at else spec


def _found(name: str) -> tuple[Spec, str]:
    try:
        return _walked()[_aliases().get(name, name)]
    except KeyError:
        hint = _near(name, [*list_models(), *_aliases()]) or "; zoo.list_models() lists them"
        raise UnknownModelError(f"no model named {name!r}{hint}") from None


def home_of(name: str) -> str:
    """Return the name of the zoo's module that defines a model.

    Raises:
        UnknownModelError: there is no such model.
        SpecError: the model was registered from outside the zoo's folders.
        TypeError: the name is no string.

    >>> home_of("merge")
    'zoo.models.merge'
    """
    want_string("home_of", name=name)
    name = name.partition("@")[0]
    if name in _registered:
        raise SpecError(f"{name!r} was registered from outside the zoo; give the file that does so as a source")
    return _found(name)[1]

"""The catalogue of models: it walks the zoo's folders for specs and returns them by name.

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
from typing import Any

import torch

from zoo.case import SpecError
from zoo.spec import Model, Spec

FOLDERS = ("zoo.models", "zoo.ops", "zoo.functions", "zoo.training", "zoo.counterexamples")
WRONG_ON_PURPOSE = "counterexamples"

_registered: dict[str, Spec] = {}


class UnknownModelError(KeyError):
    """There is no model with this name."""

    def __str__(self) -> str:
        """Return the message without the quotes that `KeyError` adds."""
        return str(self.args[0])


def specs_of(module: ModuleType) -> list[Spec]:
    """Return the specs of a module in file order: every module-level `Spec`, alone or in a tuple.

    >>> from zoo.models import merge
    >>> [spec.name for spec in specs_of(merge)]
    ['merge', 'merge_tiled']
    """
    found: list[Spec] = []
    for value in vars(module).values():
        members = value if isinstance(value, tuple) else (value,)
        found += [member for member in members if isinstance(member, Spec) and member not in found]
    return found


@cache
def _walked() -> dict[str, tuple[Spec, str]]:
    catalogue: dict[str, tuple[Spec, str]] = {}
    for folder in FOLDERS:
        package = importlib.import_module(folder)
        for entry in sorted(pkgutil.iter_modules(package.__path__, f"{folder}."), key=lambda m: m.name):
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


def register(spec: Spec) -> Spec:
    """Add a spec from outside the zoo's folders, for this process, and return it.

    Raises:
        SpecError: another spec already has the name.

    >>> import zoo
    >>> zoo.register(zoo.get_spec("merge"))
    Traceback (most recent call last):
    zoo.case.SpecError: 'merge' is already registered
    """
    if spec.name in _registered or spec.name in _walked():
        raise SpecError(f"{spec.name!r} is already registered")
    _registered[spec.name] = spec
    return spec


def list_models(
    filter: str | Sequence[str] = "*",  # noqa: A002 -- timm's name for it
    *,
    exclude: str | Sequence[str] = (),
    module: str = "",
) -> list[str]:
    """List the names of the models, sorted.

    Args:
        filter: one or more wildcard patterns; a name is listed if any of them matches.
        exclude: one or more wildcard patterns; a name is left out if any of them matches.
        module: list only the models of this folder or file, such as "models" or "ops.softmax". Models that are
            wrong on purpose are listed only under "counterexamples".

    Returns:
        The names, for `create_model`, `example_inputs` and `get_spec`.

    Raises:
        SpecError: a file of the zoo does not import, or two files define one name. Every function here raises it.

    >>> import zoo
    >>> zoo.list_models("merge*")
    ['merge', 'merge_tiled']
    >>> zoo.list_models("soft*", exclude="*naive", module="ops.softmax")
    ['softmax']
    """

    def any_match(name: str, patterns: str | Iterable[str]) -> bool:
        return any(fnmatchcase(name, p) for p in ([patterns] if isinstance(patterns, str) else patterns))

    homes = {name: home.removeprefix("zoo.") for name, (_, home) in _walked().items()}
    homes.update(dict.fromkeys(_registered, ""))
    return sorted(
        name
        for name, home in homes.items()
        if any_match(name, filter)
        and not any_match(name, exclude)
        and f"{home}.".startswith(f"{module}." if module else "")
        and (module.startswith(WRONG_ON_PURPOSE) or not home.startswith(WRONG_ON_PURPOSE))
    )


def get_spec(name: str) -> Spec:
    """Return the spec of a model, or of a model at a size of its scale, such as "merge@256".

    Raises:
        UnknownModelError: there is no such model; the message offers the nearest names.
        SpecError: the model has no scale, or the size is not a positive number.

    >>> import zoo
    >>> zoo.get_spec("merge_tiled").twin
    'merge'
    >>> zoo.get_spec("softmacks")
    Traceback (most recent call last):
    zoo.catalog.UnknownModelError: no model named 'softmacks'; did you mean softmax?
    """
    name, at, size = name.partition("@")
    spec = _registered[name] if name in _registered else _found(name)[0]
    if at and not size.isdecimal():
        raise SpecError(f"{name}@{size}: want a positive number behind '@'")
    return spec.at(int(size)) if at else spec


def _found(name: str) -> tuple[Spec, str]:
    try:
        return _walked()[name]
    except KeyError:
        near = difflib.get_close_matches(name, list_models(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; zoo.list_models() lists them"
        raise UnknownModelError(f"no model named {name!r}{hint}") from None


def home_of(name: str) -> str:
    """Return the name of the zoo's module that defines a model.

    Raises:
        UnknownModelError: there is no such model.
        SpecError: the model was registered from outside the zoo's folders.

    >>> home_of("merge")
    'zoo.models.merge'
    """
    name = name.partition("@")[0]
    if name in _registered:
        raise SpecError(f"{name!r} was registered from outside the zoo; give the file that does so as a source")
    return _found(name)[1]


def create_model(name: str, **kwargs: Any) -> Model:
    """Build a model: an `nn.Module`, or the function itself for an op or a custom Function.

    Args:
        name: a name from `list_models()`.
        kwargs: passed on to the model's constructor; they replace the spec's own values.

    Raises:
        UnknownModelError: there is no such model.

    >>> import torch, zoo
    >>> zoo.create_model("merge", in1=4, in2=2, out=3)(torch.ones(5, 4), torch.ones(2)).shape
    torch.Size([5, 3])
    """
    return get_spec(name).build(**kwargs)


def example_inputs(name: str, case: str = "", *, seed: int = 0, device: torch.device | str = "cpu") -> tuple[Any, ...]:
    """Draw positional inputs for a model.

    Args:
        name: a name from `list_models()`.
        case: name of one of the spec's cases; "" means the first.
        seed: seed of the random numbers.
        device: device of the returned tensors.

    Raises:
        UnknownModelError: there is no such model.
        KeyError: the model has no such case.
        ValueError: the case has keyword arguments; `get_spec(name).case(case).draw(generator)` returns all arguments.

    >>> import zoo
    >>> [tuple(x.shape) for x in zoo.example_inputs("merge")]
    [(5, 3, 5), (5, 1, 6)]
    """
    spec = get_spec(name)
    chosen = spec.case(case) if case else spec.cases[0]
    drawn = chosen.draw(torch.Generator().manual_seed(seed))
    if drawn.kwargs:
        raise ValueError(f"example_inputs: case {chosen.name!r} of {name} has keyword arguments {list(drawn.kwargs)}")
    return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in drawn.args)

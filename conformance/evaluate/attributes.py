"""Reads what a module keeps in plain attributes, such as counters and hidden states, and puts it back.

Such values are neither parameters nor buffers, so nothing else that resets a model knows them.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import torch

from conformance.gates.distance import same_bytes

OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
MISSING = object()  # stands for an attribute that a call makes
PLAIN = (bool, int, float, complex, str, type(None))

States = Mapping[str, Any]


def read(owner: Any) -> dict[str, Any]:
    """The plain attributes of a module and its parts, by path such as "cell.hidden"; tensors are copied.

    Plain are numbers, text, None, tensors, and lists, tuples and dicts of them. A function has none.
    """
    return {path: _copy(value) for path, module, name in _attributes(owner) for value in [vars(module)[name]]}


def settings(owner: Any) -> dict[str, float]:
    """The numbers and flags in plain attributes by which a person sets a module, by path: public, and not torch's."""
    return {
        path: vars(module)[name]
        for path, module, name in _attributes(owner)
        if type(vars(module)[name]) in (bool, float)
        if not name.startswith("_") and not type(module).__module__.startswith("torch.")
    }


def differing(before: States, after: States) -> list[str]:
    """The paths whose values differ, in order."""
    paths = before.keys() | after.keys()
    return sorted(path for path in paths if not _same(before.get(path, MISSING), after.get(path, MISSING)))


def put(owner: Any, states: States) -> None:
    """Set attributes to copies of what `read` returned, or remove them where they are `MISSING`.

    A tensor is not written in place, since a result of the model may share its memory. What another implementation of
    the module lacks, as TorchScript may, or the same one whose forward has replaced a part, is left out.
    """
    for path, value in states.items():
        module, name = _find(owner, path)
        if not hasattr(module, name):
            continue
        if value is MISSING:
            vars(module).pop(name, None)
        else:
            setattr(module, name, _copy(value))


def current(owner: Any, states: States) -> dict[str, Any]:
    """What the attributes of these paths hold now; one that the module lacks is left out."""
    found = {}
    for path in states:
        module, name = _find(owner, path)
        if hasattr(module, name):
            found[path] = _copy(getattr(module, name))
    return found


def parts_with_mode(owner: Any) -> list[torch.nn.Module]:
    """The parts of a module that are in train or eval mode; a frozen script has none."""
    parts = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    return [part for part in parts if hasattr(part, "training")]


@contextlib.contextmanager
def restored(owner: Any, paths: Iterable[str]) -> Iterator[None]:
    """A context after which these attributes, and the mode of each part, are as before."""
    modes = [(part, part.training) for part in parts_with_mode(owner)]
    held = current(owner, dict.fromkeys(paths))
    try:
        yield
    finally:
        put(owner, held)
        for part, training in modes:
            part.training = training


def _find(owner: Any, path: str) -> tuple[Any, str]:
    """The module that a path leads to, or None, and the name of the attribute in it."""
    *places, name = path.split(".")
    return reduce(lambda part, place: getattr(part, place, None), places, owner), name


def _attributes(owner: Any) -> Iterator[tuple[str, torch.nn.Module, str]]:
    if not isinstance(owner, torch.nn.Module):
        return
    for place, module in owner.named_modules():
        for name, value in vars(module).items():
            if name not in OF_EVERY_MODULE and _is_plain(value):
                yield f"{place}.{name}".lstrip("."), module, name


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and not isinstance(value, torch.nn.Parameter)
    return isinstance(value, PLAIN)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return type(value)(map(_copy, value)) if isinstance(value, (list, tuple)) else value


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return same_bytes(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(part, other[key]) for key, part in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or repr(one) == repr(other) == "nan"

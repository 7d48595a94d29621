"""What the files of models share: specs as a hurried user writes them. This file is no source of a run."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo import Case, Spec


def hurried(name: str, summary: str, build: Callable[..., Any], *cases: Case, **fields: Any) -> Spec:
    """A spec with the required fields alone, unless `fields` adds some."""
    return Spec(name=name, summary=summary, source="written for this study", build=build, cases=cases, **fields)


def normal(*shape: int, name: str = "typical") -> Case:
    """A case with one normal tensor."""
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),))


def normals(*shapes: tuple[int, ...], name: str = "typical") -> Case:
    """A case with a normal tensor of each shape."""
    return Case(name=name, inputs=lambda g: tuple(torch.randn(*shape, generator=g) for shape in shapes))


def tokens(below: int, *shape: int, name: str = "typical") -> Case:
    """A case with one tensor of integers from 0 to below − 1."""
    return Case(name=name, inputs=lambda g: (torch.randint(below, shape, generator=g),))


def drawn(draw: Callable[[torch.Generator], tuple[Any, ...]], name: str = "typical") -> Case:
    """A case with the inputs that `draw` draws."""
    return Case(name=name, inputs=draw)


def function(call: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """What builds a model that is a plain function."""
    return lambda: call


def classes(g: torch.Generator, count: int, *shape: int) -> Tensor:
    """Integers from 0 to count − 1."""
    return torch.randint(count, shape, generator=g)

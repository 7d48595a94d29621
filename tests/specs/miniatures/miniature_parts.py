"""What the files of miniatures share: the statement of a verdict, a plain model, and ways to make specs and modes.

Most miniatures are a right model in a mode that damages it, so that the float64 oracle stays whole. This file is no
source of a run; the sources beside it import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conformance import Prepared, register_mode
from zoo import Case, Expect, Spec

VALUES = frozenset({"norm", "slice", "gain", "pointwise"})


@dataclass(frozen=True)
class Miniature:
    """A cell and the verdict it must get; of a FAIL also all gates that reject any of its tensors."""

    model: str
    mode: str
    precision: str
    status: str
    gates: frozenset[str] = frozenset()
    text: str = ""

    @property
    def id(self) -> str:
        return f"{self.model}-{self.mode}-{self.precision}"


def gets(spec: Spec, mode: str, precision: str, status: str, *gates: str, text: str = "") -> Miniature:
    """State the verdict that a model gets in a mode and precision."""
    return Miniature(spec.name, mode, precision, status, frozenset(gates), text)


def fails(spec: Spec, mode: str, precision: str, *gates: str, text: str = "") -> Miniature:
    """State a FAIL, and every gate that must reject a tensor."""
    return gets(spec, mode, precision, "FAIL", *gates, text=text)


def rows(*shape: int, name: str = "typical") -> Case:
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),))


def spec_of(name: str, build: Callable[..., Any], *cases: Case, **fields: Any) -> Spec:
    return Spec(name=name, summary=name, source="a miniature", build=build, cases=cases or (rows(6, 5),), **fields)


def expect(outcome: str, *modes: str, **fields: Any) -> Expect:
    return Expect(outcome=outcome, modes=modes, reason="on purpose", **fields)


def around(wrap: Callable[..., Any]) -> Callable[[Any], Prepared]:
    """Make a mode whose call is wrap(model, *args)."""

    def prepare(model: Any) -> Prepared:
        return Prepared(lambda *args, **kwargs: wrap(model, *args, **kwargs), dict)

    return prepare


def register(modes: Mapping[str, Callable[[Any], Any]]) -> None:
    for name, prepare in modes.items():
        register_mode(name, prepare, compiles=False)


LINEAR = spec_of("linear", lambda: nn.Linear(5, 4), dtypes="follows")
REVERSED = spec_of("reversed", lambda: lambda x: x.flip(0), dtypes="input")

"""What the files of miniatures share: the statement of a verdict, a plain model, and ways to make specs and modes.

Most miniatures are a right model in a mode that damages it, so that the float64 oracle stays whole. This file is no
source of a run; the sources beside it import it.
"""

from dataclasses import dataclass

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
    gates: frozenset[str]
    text: str

    @property
    def id(self):
        return f"{self.model}-{self.mode}-{self.precision}"


class Parts(nn.Module):
    """A module of the parts that it is given by name: modules, parameters, buffers (other tensors) and plain values."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


def gets(spec, mode, precision, status, *gates, text=""):
    """State the verdict that a model gets in a mode and precision."""
    return Miniature(spec.name, mode, precision, status, frozenset(gates), text)


def fails(spec, mode, precision, *gates, text=""):
    """State a FAIL, and every gate that must reject a tensor."""
    return gets(spec, mode, precision, "FAIL", *gates, text=text)


def rows(*shape, name="typical"):
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),))


def spec_of(name, build, *cases, **fields):
    return Spec(name=name, summary=name, source="a miniature", build=build, cases=cases or (rows(6, 5),), **fields)


def expect(outcome, *modes, **fields):
    return Expect(outcome=outcome, modes=modes, reason="on purpose", **fields)


def around(wrap):
    """Make a mode whose call is wrap(model, *args)."""

    def prepare(model):
        return Prepared(lambda *args, **kwargs: wrap(model, *args, **kwargs), dict)

    return prepare


def second_time(change):
    """Make a mode whose every second call returns change(what the model returns, x)."""

    def prepare(model):
        calls = []

        def call(x):
            calls.append(1)
            return change(model(x), x) if len(calls) % 2 == 0 else model(x)

        return Prepared(call, dict)

    return prepare


def register(**modes):
    for name, prepare in modes.items():
        register_mode(name, prepare, compiles=False)


LINEAR = spec_of("linear", lambda: nn.Linear(5, 4), dtypes="follows")
REVERSED = spec_of("reversed", lambda: lambda x: x.flip(0), dtypes="input")

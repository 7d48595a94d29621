"""What the oracle finds out about a model, made in this process, and a Function whose backward is wrong."""

import torch

from conformance.axes import PRECISIONS
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec


class Tripled(torch.autograd.Function):
    """The identity, whose backward is wrong."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return 3 * gradient


def reference_of(build, precisions=("fp32",), **fields):
    """The reference of a model on five rows of six numbers; `fields` are those of its spec."""
    case = Case(name="typical", inputs=lambda g: (torch.randn(5, 6, generator=g),))
    spec = Spec(name="model", summary="", source="", build=build, cases=(case,), **fields)
    return reference.make(spec, None, 0, [PRECISIONS[name] for name in precisions])["typical"]

"""Which gradients are what cancellation leaves, and which are chaotic."""

import pytest
import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.oracle import reference
from conformance.records.observation import OUTPUT, TensorName
from zoo.case import Case
from zoo.spec import Spec

FP32 = PRECISIONS["fp32"]


class Chaotic(nn.Module):
    """Its output is well determined, and so is the gradient of the bias; that of x is not."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = x.sigmoid()
        for _ in range(25):
            y = 3.9 * y * (1 - y)
        return self.bias + 1e-4 * y


def tensors_of(build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(16, 6, generator=g),))
    spec = Spec(name="net", summary="", source="", build=build, cases=(case,))
    return reference.make_for_timing(spec, 0, [FP32])["typical"].tensors


@pytest.mark.parametrize("weight", [0.5, 1.0, 4.0])
def test_a_gradient_that_cancels_but_for_eps_is_a_remainder(weight):
    def build():
        model = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Sigmoid())
        nn.init.constant_(model[0].weight, weight)
        return model

    tensors, weight_of_first = tensors_of(build), TensorName("gradient", "0.weight")
    assert [name for name, known in tensors.items() if known.is_remainder] == [weight_of_first]
    assert tensors[weight_of_first].is_null


@pytest.mark.parametrize(
    ("build", "tensor"),
    [(Chaotic, TensorName("gradient", "x")), (lambda: lambda x: (x + 4e6) - 4e6, OUTPUT)],
    ids=["chaos", "output"],
)
def test_chaos_and_an_output_that_cancels_are_none(build, tensor):
    known = tensors_of(build)[tensor]
    assert known.spread["fp32"].absolute > known.oracle.norm / 4
    assert not known.is_remainder
    assert not known.is_null

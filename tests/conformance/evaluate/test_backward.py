"""A gradient underflows in float16 if the model takes it in its forward; that of the judge is scaled."""

import pytest
import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.evaluate import backward
from conformance.oracle import reference
from conformance.records.observation import OUTPUT, TensorName
from zoo.case import Case
from zoo.spec import Spec

FP16 = PRECISIONS["amp_fp16"]
SMALL = 8 * FP16.quantum


class Layer(nn.Module):
    """Its gradient with respect to x has a few of float16's smallest numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(SMALL * torch.ones(4, 3))

    def forward(self, x):
        return torch.mm(x, self.weight)


class Slope(Layer):
    """The same gradient, taken in forward."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.mm(x, self.weight).sum(), x, create_graph=True)
        return slope


@pytest.mark.parametrize(
    ("build", "tensor", "underflows"), [(Layer, TensorName("gradient", "x"), False), (Slope, OUTPUT, True)]
)
def test_only_a_gradient_that_forward_takes_may_underflow(build, tensor, underflows):
    case = Case(name="typical", inputs=lambda g: (torch.randn(16, 4, generator=g),))
    spec = Spec(name="net", summary="", source="", build=build, cases=(case,))
    known = reference.make_for_timing(spec, 0, [PRECISIONS["fp32"], FP16])["typical"].tensors[tensor]
    relative = known.spread["amp_fp16"].absolute / known.oracle.norm
    assert (relative > 0.1) is underflows
    assert (relative < 16 * FP16.unit) is not underflows


def test_it_is_told_which_backward_runs():
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: seen.append((backward.is_running(), backward.is_scaled())))
    (x * x).sum().backward()
    with backward.in_forward():
        (x * x).sum().backward()
    assert seen == [(True, True), (True, False)]
    assert not backward.is_running()

"""The judge's backward: its gradients are scaled, and those of reentrant checkpoints are found."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from conformance.axes import PRECISIONS
from conformance.evaluate import backward, evaluation
from conformance.evaluate.evaluation import question_of
from conformance.float64 import wide
from conformance.oracle import reference
from conformance.records.observation import OUTPUT, TensorName
from zoo.case import Case
from zoo.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore:.*autocast.* is deprecated")  # which torch 2.4 calls itself
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


# Models with reentrant checkpoints, which refuse `torch.autograd.grad`.


class Net(nn.Module):
    """Two layers, of which the second may be recomputed in backward."""

    def __init__(self, *, recomputes):
        super().__init__()
        self.first, self.second, self.recomputes = nn.Linear(6, 6), nn.Linear(6, 6), recomputes

    def forward(self, x):
        y = self.first(x).tanh()
        if not self.recomputes:
            return self.second(y).exp()
        return checkpoint(lambda z: self.second(z).exp(), y, use_reentrant=True)


def spec(*, recomputes):
    """The spec of a network."""
    return Spec(
        name="net",
        summary="",
        source="",
        build=lambda: Net(recomputes=recomputes),
        cases=(Case(name="typical", inputs=lambda g: (torch.randn(5, 6, generator=g),)),),
    )


def evaluated(*, recomputes):
    """What eager returns, and the `.grad` that it leaves."""
    of = spec(recomputes=recomputes)
    model = wide.prepared_model(of, 0)
    kept = model.first.weight.grad = torch.ones(6, 6)
    found = evaluation.evaluate(model, model, question_of(of, of.cases[0], 0, 0, lambda call: call, model), noted=True)
    assert model.first.weight.grad is kept
    assert model.second.weight.grad is None
    assert found.changes == []
    return found.tensors


def test_its_gradients_are_those_without_a_checkpoint():
    plain, recomputed = evaluated(recomputes=False), evaluated(recomputes=True)
    assert plain.keys() == recomputed.keys()
    assert all(torch.allclose(plain[name], recomputed[name]) for name in plain)


def test_it_has_an_oracle_and_torch_s_own_checkpoint_is_there_again():
    before = CheckpointFunction.apply
    truths = [
        reference.make(spec(recomputes=way), None, 0, [PRECISIONS["fp32"]])["typical"].tensors for way in (False, True)
    ]
    assert truths[0].keys() == truths[1].keys()
    assert CheckpointFunction.apply == before


def test_a_second_derivative_raises_the_error_of_torch():
    of = spec(recomputes=True)
    model = wide.prepared_model(of, 0)
    question = question_of(of, of.cases[0], 0, 0, lambda call: call, model)
    with pytest.raises(RuntimeError):
        evaluation.differentiate_twice(model, model, question)

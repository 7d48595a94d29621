"""Models with reentrant checkpoints, which refuse `torch.autograd.grad`."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from conformance.axes import PRECISIONS
from conformance.evaluate import evaluation
from conformance.evaluate.evaluation import question_of
from conformance.float64 import wide
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore:.*autocast.* is deprecated")  # which torch 2.4 calls itself


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

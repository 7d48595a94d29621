"""What an evaluation computes: gradients, behind reentrant checkpoints too, and results under vmap and forward mode."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from conformance.axes import PRECISIONS
from conformance.cell.session import CellSession
from conformance.errors import SelfCheckError
from conformance.evaluate import backward, evaluation, transforms
from conformance.float64 import wide
from conformance.oracle import reference
from conformance.records.cell import OUTPUT, Cell, TensorName
from zoo import Case, Spec, SpecError

pytestmark = pytest.mark.filterwarnings("ignore:.*autocast.* is deprecated")  # which torch 2.4 calls itself
FP16 = PRECISIONS["amp_fp16"]
SMALL = 8 * FP16.quantum
VMAPPED, TANGENT = TensorName("vmapped", "output"), TensorName("tangent", "output")


def spec_of(build, **fields):
    case = Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g),))
    return Spec(name="net", summary="", source="", build=build, cases=(case,), **fields)


# The judge scales the cotangents of its own backward.


class Layer(nn.Module):
    """Its gradient with respect to x has a few of float16's smallest numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(SMALL * torch.ones(5, 3))

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
    known = reference.make_for_timing(spec_of(build), 0, [PRECISIONS["fp32"], FP16])["typical"].tensors[tensor]
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
        self.first, self.second, self.recomputes = nn.Linear(5, 5), nn.Linear(5, 5), recomputes

    def forward(self, x):
        y = self.first(x).tanh()
        if not self.recomputes:
            return self.second(y).exp()
        return checkpoint(lambda z: self.second(z).exp(), y, use_reentrant=True)


def evaluated(*, recomputes):
    """A network, the question of its case, and what eager returns; it puts back the `.grad` of each leaf."""
    spec = spec_of(partial(Net, recomputes=recomputes))
    model = wide.prepared_model(spec, 0)
    question = evaluation.question_of(spec, spec.cases[0], 0, 0, lambda call: call, model)
    kept = model.first.weight.grad = torch.ones(5, 5)
    found = evaluation.evaluate(model, model, question, noted=True)
    assert model.first.weight.grad is kept
    assert model.second.weight.grad is None
    assert found.changes == []
    return model, question, found.tensors


def test_its_gradients_are_those_without_a_checkpoint_and_have_none_in_turn():
    _, _, plain = evaluated(recomputes=False)
    model, question, recomputed = evaluated(recomputes=True)
    assert plain.keys() == recomputed.keys()
    assert all(torch.allclose(plain[name], recomputed[name]) for name in plain)
    with pytest.raises(RuntimeError):
        evaluation.differentiate_twice(model, model, question)


def test_it_has_an_oracle_and_torch_s_own_checkpoint_is_there_again():
    before = CheckpointFunction.apply
    specs = [spec_of(partial(Net, recomputes=way)) for way in (False, True)]
    truths = [reference.make(spec, None, 0, [PRECISIONS["fp32"]])["typical"].tensors for spec in specs]
    assert truths[0].keys() == truths[1].keys()
    assert CheckpointFunction.apply == before


# The oracle under vmap and in forward mode, and the dtypes that a cell may give there.


def transformed(**fields):
    wanted = {"vmappable": True, "forward_mode": True, "dtypes": "follows", **fields}
    return spec_of(lambda: nn.Linear(5, 4), **wanted)


def test_the_oracle_loops_over_three_draws_that_differ_and_its_tangents_are_held_to_its_gradients():
    oracle = wide.Oracle(transformed(), 0)
    question = oracle.question(oracle.spec.cases[0], 0)
    found = oracle.evaluate(question)
    (x,) = question.stacked.args
    assert x.shape == (3, 6, 5)
    assert not torch.equal(x[0], x[1])
    torch.testing.assert_close(found.tensors[VMAPPED], oracle.model(x).detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found.tensors[VMAPPED][0], found.tensors[OUTPUT])
    transforms.check_adjoint(question, found)
    for name in (TANGENT, TensorName("gradient", "weight")):
        damaged = replace(found, tensors=found.tensors | {name: found.tensors[name] * (1 + 1e-6)})
        with pytest.raises(SelfCheckError, match="forward_mode"):
            transforms.check_adjoint(question, damaged)


@pytest.mark.parametrize(
    ("name", "found", "asked"),
    [
        (VMAPPED, torch.bfloat16, "bfloat16"),
        (VMAPPED, torch.float32, "float32"),
        (VMAPPED, torch.float64, "bfloat16"),
        (TANGENT, torch.float32, "bfloat16"),
        (TANGENT, torch.bfloat16, "bfloat16"),
    ],
)
def test_the_dtype_under_autocast_is_the_output_s_and_only_vmap_may_promote(name, found, asked):
    session = CellSession(transformed(), Cell("net", "eager", "amp_bf16", "cpu"), 0)
    question = session.question(session.spec.cases[0], nn.Linear(5, 4))
    assert session._dtype(name, question, None, torch.zeros(2, dtype=found)) == asked


@pytest.mark.parametrize("fields", [{"differentiable": False}, {"mutates": ("input",)}])
def test_claims_that_cannot_be_checked_are_refused(fields):
    with pytest.raises(SpecError, match="forward_mode"):
        transformed(vmappable=False, **fields)

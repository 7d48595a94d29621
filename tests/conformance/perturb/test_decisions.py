"""Decisions by numbers that a model computes and then detaches: masks, indices, whole numbers."""

import contextlib

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import seed_generator
from conformance.perturb.kinks import KinkWatch
from conformance.perturb.rounding import Rounding

DECIDE = {
    "comparison": lambda h: h > 0.1,
    "mask of magnitudes": lambda h: (h.abs() < 0.5).to(h.dtype),
    "threshold of their own": lambda h: h >= h.mean(),
    "floor": lambda h: torch.floor(h * 2),
    "round": lambda h: h.round(decimals=1),
    "sign": torch.sign,
    "in place": lambda h: h.clone().floor_(),
    "cast": lambda h: (h * 4).long(),
    "bucketize": lambda h: torch.bucketize(h, torch.linspace(-1, 1, 5, dtype=h.dtype)),
    "searchsorted": lambda h: torch.searchsorted(torch.linspace(-1, 1, 5, dtype=h.dtype), h),
    "topk": lambda h: torch.zeros_like(h).scatter(-1, h.topk(2, -1).indices, 1.0),
    "sort": lambda h: h.argsort(-1).to(h.dtype),
    "max": lambda h: h.max(-1, keepdim=True).indices.to(h.dtype),
    "argmax": lambda h: h.argmax(-1, keepdim=True).to(h.dtype),
}
DETACH = {
    "detached": lambda decide, h: decide(h.detach()),
    "computed from what is detached": lambda decide, h: decide(h.detach() * 1.5),
    "without gradients": torch.no_grad()(lambda decide, h: decide(h)),
}


def numbers():
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()


def watched(use, *operands, rows=0):
    with KinkWatch(rows) as watch:
        use(*operands)
    return watch


@pytest.mark.parametrize("detach", DETACH.values(), ids=DETACH)
@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
def test_a_decision_that_meets_a_gradient_is_a_kink(decide, detach):
    assert watched(lambda x: (x * 2) * detach(decide, x * 2), numbers()).kinked


@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
def test_a_decision_by_a_layer_that_runs_without_gradients_is_a_kink(decide):
    layer = nn.Linear(6, 6, dtype=torch.float64)

    def gated(x):
        with torch.no_grad():
            gate = decide(layer(x.detach()))
        return x * gate

    assert watched(gated, numbers()).kinked


BY_VALUE = {name: decide for name, decide in DECIDE.items() if name != "argmax"}  # an argmax of anything counts


@pytest.mark.parametrize("decide", BY_VALUE.values(), ids=BY_VALUE)
def test_a_decision_by_an_input_or_a_constant_is_none(decide):
    table = torch.linspace(-1, 1, 48, dtype=torch.float64).view(8, 6)
    with_inputs = watched(lambda x: (x * 2) * decide(table), numbers())
    assert not with_inputs.kinked
    assert not watched(lambda x: (x * 2) * decide(torch.full_like(x * 2, 0.3)), numbers()).kinked


def test_a_decision_by_a_gradient_that_forward_takes_is_a_kink():
    def fast_gradient_sign(x):
        h = x * 2
        (gradient,) = torch.autograd.grad(h.pow(3).sum(), h, retain_graph=True)
        return (h + 0.1 * gradient.sign()).square()

    assert watched(fast_gradient_sign, numbers()).kinked


def test_a_decision_that_no_gradient_meets_is_none():
    assert not watched(lambda x: ((x * 2).detach() > 0).double() * 3, numbers()).kinked


def test_the_smallest_step_that_changes_the_decision_is_the_margin():
    x = torch.tensor([[1.0, 4.0, 2.5], [0.25, 8.0, 7.0]], dtype=torch.float64, requires_grad=True)
    rms = float(x.detach().square().mean().sqrt())
    assert margins(lambda h: h > 2, x, rms) == pytest.approx([0.5, 1.75])
    assert margins(lambda h: h.floor(), x, rms) == pytest.approx([0.0, 0.0])
    assert margins(lambda h: h.topk(1, -1).indices, x, rms) == pytest.approx([1.5, 1.0])
    assert margins(lambda h: torch.bucketize(h, torch.tensor([0.5, 3.0]).double()), x, rms) == pytest.approx(
        [0.5, 0.25]
    )


def margins(decide, x, rms):
    watch = watched(lambda x: (x * 1.0).sum() * decide((x * 1.0).detach()), x, rows=2)
    return (watch.margins * rms).tolist()


@pytest.mark.parametrize("count", [0, 3])
def test_to_select_none_or_all_has_no_border(count):
    watch = watched(lambda x: x[:, :3] * (x[:, :3] * 2).detach().topk(count, -1).indices.sum(), numbers(), rows=8)
    assert watch.margin == float("inf")


@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
def test_to_watch_changes_no_rounding(decide):
    def rounded(watch):
        with Rounding(PRECISIONS["amp_bf16"], seed_generator("noise")), watch:
            h = numbers() * 2
            return (h * decide(h.detach()) * 3).exp()

    assert torch.equal(rounded(contextlib.nullcontext()), rounded(KinkWatch()))


def test_the_numbers_that_decide_are_let_go():
    x = numbers()
    with KinkWatch() as watch, torch.no_grad():
        computed = x * 2
        kept = StorageWeakRef(computed.untyped_storage())
        del computed
        assert kept.expired()
        constants = [torch.linspace(-1, 1, 48, dtype=x.dtype).view(8, 6) for _ in range(100)]  # where it was, perhaps
    with watch:
        for constant in constants:
            x * (constant > 0)
    assert not watch.kinked

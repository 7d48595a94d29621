"""Finite differences of models that take tensors out of autograd on purpose, and of those that do so by mistake."""

import re
from pathlib import Path

import pytest
import torch
from harness.oracles import reference_of
from torch import nn
from torch.nn.functional import cosine_similarity, gumbel_softmax, mse_loss

from conformance.derivatives.movable_model import freeze
from conformance.errors import SelfCheckError
from conformance.records.cell import STOPPED
from zoo import Convention


class Halved(torch.autograd.Function):
    """The square, with half of its gradient. It detaches its input, as a forward of a Function may."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach() ** 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Lost(torch.autograd.Function):
    """The square, without a gradient."""

    @staticmethod
    def forward(_, x):
        return x**2

    @staticmethod
    def backward(*_):
        return None


class Assigned(torch.autograd.Function):
    """Writes a row into a table, which it returns as it is, so that torch makes a view of it."""

    @staticmethod
    def forward(ctx, table, row, number):
        ctx.number = number
        table.data[number] = row
        return table

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient[ctx.number], None


def assigned(y, _):
    table = torch.zeros(2, *y.shape)
    for number in range(2):
        table = Assigned.apply(table, y.exp() * (number + 1), number)
    return table.sum(0) * y.detach()


class Layer(nn.Module):
    """A linear layer, and a function of its output and its input."""

    def __init__(self, of, layer=None):
        super().__init__()
        self.layer, self.of = layer or nn.Linear(6, 6), of

    def forward(self, x):
        return self.of(self.layer(x), x)


without_autograd = torch.no_grad()(torch.exp)
STOPS = {
    "detach": lambda y, _: y * y.detach().exp(),
    "data": lambda y, _: y * y.data,
    "no_grad": lambda y, _: y * without_autograd(y),
    "no_grad, written": lambda y, _: y * torch.no_grad()(torch.Tensor.copy_)(torch.zeros_like(y), y),
    "no_grad, a view": lambda y, _: y @ torch.no_grad()(torch.t)(y),
    "item": lambda y, _: y * y.square().mean().item(),
    "straight through": lambda y, _: y + (y.round() - y).detach(),
    "gumbel": lambda y, _: gumbel_softmax(y, hard=True),
    "a target": lambda y, x: mse_loss(y, x.detach().tanh()),
    "an output alone": lambda y, _: (y, without_autograd(y)),
    "beside a table that Functions write": assigned,
    "beside writes in place": lambda y, _: y.clone().mul_(2.0) * y.detach().clone().add_(1.0).mul_(y.detach()),
}


LEAVES = {"x", "layer.weight", "layer.bias"}


def made(of, *, stops_gradients, layer=None):
    """The references of a model of one layer and what is made of its output."""
    return reference_of(lambda: Layer(of, layer), changes_state=("random generator",), stops_gradients=stops_gradients)


@pytest.mark.parametrize("of", STOPS.values(), ids=STOPS)
def test_what_forward_takes_out_of_autograd_counts_as_a_constant_if_the_spec_says_so(of):
    assert set(made(of, stops_gradients=True).assumed[STOPPED].removesuffix(" and more").split(", ")) <= LEAVES
    with pytest.raises(SelfCheckError, match="declare stops_gradients=True: forward calls detach"):
        made(of, stops_gradients=False)


@pytest.mark.parametrize("stops_gradients", [False, True])
@pytest.mark.parametrize(
    "of",
    [
        lambda y, _: y.sigmoid() * y.exp(),  # torch detaches what it keeps for backward
        lambda y, _: (y - y.detach().amax(1, keepdim=True)).softmax(1),
        lambda y, _: cosine_similarity(y, y.exp()),  # torch writes in place under no_grad
    ],
)
def test_what_changes_nothing_is_not_remarked(of, stops_gradients):
    assert not made(of, stops_gradients=stops_gradients).assumed


class Two(nn.Module):
    """Two layers, of which what the second gives is taken out of autograd."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        kept = self.two(x).sigmoid()
        return self.one(x) * kept.detach()


def test_a_leaf_whose_only_path_is_stopped_is_red_with_the_line_also_if_the_spec_stops_gradients():
    told = (
        r"two\.(weight|bias) gets no gradient from output, .* taken out of autograd at test_stopped_gradients\.py:\d+"
    )
    with pytest.raises(SelfCheckError, match=told) as raised:
        reference_of(Two, stops_gradients=True)
    line = int(re.search(r"py:(\d+)", str(raised.value))[1])
    assert "kept.detach()" in Path(__file__).read_text().splitlines()[line - 1]
    two = tuple(Convention(tensor=f"two.{name}", why="a teacher") for name in ("weight", "bias"))
    assert reference_of(Two, stops_gradients=True, conventions=two).assumed == {STOPPED: "x, two.weight and more"}


def test_the_leaves_of_whose_gradients_a_part_is_stopped_are_named():
    assert made(lambda y, x: y * x.sigmoid().detach(), stops_gradients=True).assumed == {STOPPED: "x"}


@pytest.mark.parametrize("function", [Halved, Lost])
@pytest.mark.parametrize("beside", [torch.zeros_like, lambda y: y.detach().exp()])
def test_a_wrong_backward_is_wrong_beside_what_is_stopped_too(function, beside):
    with pytest.raises(SelfCheckError, match=r"gradient of \S+ at .* declare surrogate_gradient or Convention"):
        made(lambda y, _: function.apply(y) + y.tanh() * beside(y), stops_gradients=True)


@pytest.mark.parametrize("stops_gradients", [False, True])
@pytest.mark.parametrize(
    "before", [nn.Identity, lambda: nn.BatchNorm1d(6)], ids=["alone", "behind a batch norm, whose output stays free"]
)
def test_a_vector_of_spectral_norm_is_state_and_no_stopped_gradient(before, stops_gradients):
    layer = nn.Sequential(before(), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))
    assert not made(lambda y, _: y.exp(), stops_gradients=stops_gradients, layer=layer).assumed


def test_the_ops_of_a_recorded_run_have_the_numbers_of_another_run():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def forward():
        return torch.zeros_like(x).add_(1.0).mul_(3.0) * x.detach()  # an op in place may call one more

    held = freeze(lambda: None, forward, list, stops=True)
    with torch.no_grad():
        x.fill_(2.0)
    with held():
        assert torch.equal(forward(), torch.full((3,), 3.0, dtype=torch.float64))

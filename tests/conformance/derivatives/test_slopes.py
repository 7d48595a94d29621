"""Finite differences of all leaves together: they pass right gradients, and see a wrong one of any leaf."""

import copy

import pytest
import torch
from harness.oracles import Tripled
from torch import nn

from conformance.derivatives import gradients
from conformance.derivatives.slopes import Slopes
from conformance.errors import SelfCheckError
from conformance.oracle import reference
from zoo import Case, Spec

SIZES = (0.1, 1.0, 10.0)  # of what the layers add, so that the loss hangs on some leaves far more than on others
COTANGENT = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Sum(nn.Module):
    """Twelve layers side by side, of very different weight."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
        self.gains = nn.ParameterList(torch.tensor(SIZES[i % 3]) for i in range(12))

    def forward(self, x):
        return sum(gain * torch.tanh(layer(x)) for layer, gain in zip(self.layers, self.gains, strict=True))


@pytest.fixture(params=range(3))
def agree(request):
    """A function that says whether the gradients of such a sum agree after a change of them, in some direction."""
    torch.manual_seed(0)
    model, x = Sum().double(), torch.randn(64, 8, dtype=torch.float64)
    found = torch.autograd.grad(model(x), [*model.parameters()], COTANGENT)
    right = dict(zip((name for name, _ in model.named_parameters()), found, strict=True))
    before = copy.deepcopy(model.state_dict())

    def agree(**changed):
        given = {leaf: changed.get(name, right[name]) for name, leaf in model.named_parameters()}
        slopes = Slopes(lambda: {"output": model(x)}, {"output": COTANGENT})
        agrees = slopes.agree(model(x), given, torch.Generator().manual_seed(request.param))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        return agrees

    agree.right = right
    return agree


def test_right_gradients_agree_and_leaves_are_as_before(agree):
    assert agree()


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_one_gradient_that_is_wrong_disagrees(agree, factor):
    for name, gradient in agree.right.items():
        assert not agree(**{name: gradient * factor}), name


def test_gradients_of_equal_shape_that_are_exchanged_disagree(agree):
    one, other = "layers.0.weight", "layers.1.weight"
    assert not agree(**{one: agree.right[other], other: agree.right[one]})


def fits(forward, leaf, gradient, cotangent):
    """Whether a gradient of one leaf agrees."""
    slopes = Slopes(lambda: {"output": forward()}, {"output": cotangent})
    return slopes.agree(forward(), {leaf: gradient}, torch.Generator().manual_seed(0))


def test_a_complex_leaf_is_tested_in_both_parts():
    leaf, cotangent = torch.randn(30, dtype=torch.complex128, requires_grad=True), torch.randn(30, dtype=torch.float64)

    def forward():
        return (leaf * leaf.conj().exp()).real

    (gradient,) = torch.autograd.grad(forward(), [leaf], cotangent)
    assert fits(forward, leaf, gradient, cotangent)
    for wrong in (gradient.real + 0j, gradient * 1j, gradient.conj()):
        assert not fits(forward, leaf, wrong, cotangent)


def test_curvature_in_many_outputs_is_no_kink():
    leaf = torch.rand(30, dtype=torch.float64, requires_grad=True)
    outputs = torch.randn(2000, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    cotangent = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def forward():
        return (3.0 * (outputs @ leaf)).sin()

    (right,) = torch.autograd.grad(forward(), [leaf], cotangent)
    assert fits(forward, leaf, right, cotangent)
    assert not fits(forward, leaf, right * 1.01, cotangent)


def test_a_leaf_at_a_kink_is_unclear():
    leaf = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    assert not fits(leaf.relu, leaf, torch.zeros(30), torch.ones(30, dtype=torch.float64))


# The check of a whole model.


def check(build, inputs=lambda g: (torch.randn(64, 8, generator=g),)):
    case = Case(name="typical", inputs=inputs)
    reference.make(Spec(name="many", summary="", source="", build=build, cases=(case,)), None, 0, [])


def test_an_infinite_gradient_is_the_one_that_is_named():
    with pytest.raises(SelfCheckError, match=r"at \(0, 2\) is -?inf; draw inputs away from the edge of their domain"):
        check(lambda: torch.asin, lambda _: (torch.tensor([[0.1, 0.2, 1.0], [0.3, -0.4, 0.5]]),))


class TooLarge(Tripled):
    """Copies, and gives a gradient that is too large by two percent."""

    @staticmethod
    def backward(_, gradient):
        return gradient * 1.02


class Wrong(Sum):
    """A sum with a wrong gradient of one of its last leaves."""

    def forward(self, x):
        return super().forward(x) + TooLarge.apply(self.layers[11].bias)


def test_a_wrong_gradient_is_named_and_right_ones_cost_no_run_for_each_leaf(monkeypatch):
    checked = []
    gradcheck = gradients.gradcheck

    def counted(function, leaves, **options):
        checked.append(len(leaves))
        return gradcheck(function, leaves, **options)

    monkeypatch.setattr(gradients, "gradcheck", counted)
    check(Sum)
    assert checked == [1]
    with pytest.raises(SelfCheckError, match=r"gradient of layers\.11\.bias at"):
        check(Wrong)
    assert sum(checked) > 2


class Off(nn.Module):
    """Units that are off for half of the rows: a bias of zero puts what follows them on a kink."""

    runs = 0

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 32, bias=False), nn.Linear(32, 32), nn.Linear(32, 4)
        nn.init.zeros_(self.second.bias)

    def forward(self, x):
        Off.runs += 1
        return self.last(self.second(self.first(x.abs()).abs() * (x[:, :1] > 0)).relu())


class WronglyOff(Off):
    """The same with a wrong gradient behind the kinks."""

    def forward(self, x):
        return super().forward(x) + TooLarge.apply(self.last.bias)


def test_numbers_on_kinks_cost_no_run_for_each_and_hide_no_wrong_gradient():
    Off.runs = 0
    check(Off)
    assert Off.runs < 150
    with pytest.raises(SelfCheckError, match=r"gradient of last\.bias at"):
        check(WronglyOff)


def test_what_gradcheck_rejects_for_another_reason_is_not_checked_beside_kinks(monkeypatch):
    def rejected(*_, **__):
        raise gradients.GradcheckError("Backward is not reentrant")

    monkeypatch.setattr(gradients.GradientCheck, "_check_all", rejected)
    with pytest.raises(SelfCheckError, match="two backward passes over one graph give different gradients"):
        check(Off)

"""Finite differences of all leaves together: they pass right gradients, and see a wrong one of any leaf."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from conformance.derivatives import gradients
from conformance.derivatives.slopes import Slopes
from conformance.errors import SelfCheckError
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec

SIZES = (0.1, 1.0, 10.0)  # of what the layers add, so that the loss hangs on some leaves far more than on others
COTANGENT = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Sum(nn.Module):
    """Twelve layers side by side, of very different weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
        self.gains = nn.ParameterList(torch.tensor(SIZES[i % 3]) for i in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the layers."""
        return sum(gain * torch.tanh(layer(x)) for layer, gain in zip(self.layers, self.gains, strict=True))  # type: ignore[return-value]


def test_right_gradients_agree_and_leaves_are_as_before(many: tuple[Sum, torch.Tensor], seed: int) -> None:
    model, x = many
    before = copy.deepcopy(model.state_dict())
    assert _agree(model, x, lambda _, gradient: gradient, seed)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_one_gradient_that_is_wrong_disagrees(many: tuple[Sum, torch.Tensor], seed: int, factor: float) -> None:
    model, x = many
    for name, _ in model.named_parameters():
        assert not _agree(model, x, lambda n, gradient, name=name: gradient * (factor if n == name else 1.0), seed), (
            name
        )


def test_gradients_of_equal_shape_that_are_exchanged_disagree(many: tuple[Sum, torch.Tensor], seed: int) -> None:
    model, x = many
    other_way = {"layers.0.weight": "layers.1.weight", "layers.1.weight": "layers.0.weight"}
    right = _gradients(model, x)
    assert not _agree(model, x, lambda name, gradient: right.get(other_way.get(name, ""), gradient), seed)


def test_a_complex_leaf_is_tested_in_both_parts() -> None:
    leaf = torch.randn(30, dtype=torch.complex128, requires_grad=True)
    forward: Callable[[], dict[str, torch.Tensor]] = lambda: {"output": (leaf * leaf.conj().exp()).real}  # noqa: E731
    cotangent = torch.randn(30, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(forward()["output"], [leaf], cotangent)
    slopes = Slopes(forward, {"output": cotangent})
    for wrong, right in (
        (gradient, True),
        (gradient.real + 0j, False),
        (gradient * 1j, False),
        (gradient.conj(), False),
    ):
        assert slopes.agree(forward()["output"], {leaf: wrong}, torch.Generator().manual_seed(0)) is right


def test_curvature_in_many_outputs_is_no_kink() -> None:
    leaf = torch.rand(30, dtype=torch.float64, requires_grad=True)
    outputs = torch.randn(2000, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    forward: Callable[[], dict[str, torch.Tensor]] = lambda: {"output": (3.0 * (outputs @ leaf)).sin()}  # noqa: E731
    cotangent = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    (right,) = torch.autograd.grad(forward()["output"], [leaf], cotangent)
    slopes = Slopes(forward, {"output": cotangent})
    for gradient, agrees in ((right, True), (right * 1.01, False)):
        assert slopes.agree(forward()["output"], {leaf: gradient}, torch.Generator().manual_seed(0)) is agrees


def test_an_infinite_gradient_is_the_one_that_is_named() -> None:
    case = Case(name="typical", inputs=lambda _: (torch.tensor([[0.1, 0.2, 1.0], [0.3, -0.4, 0.5]]),))
    spec = Spec(name="edge", summary="arcsine", source="this test", build=lambda: torch.asin, cases=(case,))
    with pytest.raises(SelfCheckError, match=r"at \(0, 2\) is -?inf; draw inputs away from the edge of their domain"):
        reference.make(spec, None, 0, [])


def test_a_leaf_at_a_kink_is_unclear() -> None:
    leaf = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    forward: Callable[[], dict[str, torch.Tensor]] = lambda: {"output": leaf.relu()}  # noqa: E731
    slopes = Slopes(forward, {"output": torch.ones(30, dtype=torch.float64)})
    assert not slopes.agree(forward()["output"], {leaf: torch.zeros(30)}, torch.Generator().manual_seed(0))


class Doubled(torch.autograd.Function):
    """Copies, and gives a gradient that is too large by two percent."""

    @staticmethod
    def forward(_: object, x: torch.Tensor) -> torch.Tensor:
        """Copy."""
        return x.clone()

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """A wrong gradient."""
        return gradient * 1.02


class Wrong(Sum):
    """A many with a wrong gradient of one of its last leaves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the sum, with one layer more."""
        return super().forward(x) + Doubled.apply(self.layers[11].bias)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("model", [Sum, Wrong])
def test_a_wrong_gradient_is_named_and_right_ones_cost_no_run_for_each_leaf(
    model: type[Sum], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(name="typical", inputs=lambda g: (torch.randn(64, 8, generator=g),))
    spec = Spec(name="many", summary="a sum", source="this test", build=model, cases=(case,))
    checked: list[int] = []
    check = gradients.gradcheck

    def counted(function: object, leaves: list[torch.Tensor], **options: object) -> bool:
        checked.append(len(leaves))
        return bool(check(function, leaves, **options))

    monkeypatch.setattr(gradients, "gradcheck", counted)
    if model is Wrong:
        with pytest.raises(SelfCheckError, match=r"gradient of layers\.11\.bias at"):
            reference.make(spec, None, 0, [])
        assert sum(checked) > 1
    else:
        reference.make(spec, None, 0, [])
        assert checked == [1]


class Off(nn.Module):
    """Units that are off for half of the rows: a bias of zero puts what follows them on a kink."""

    runs = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 32, bias=False), nn.Linear(32, 32), nn.Linear(32, 4)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many layers as it takes to be off twice."""
        Off.runs += 1
        result: torch.Tensor = self.last(self.second(self.first(x.abs()).abs() * (x[:, :1] > 0)).relu())
        return result


class WronglyOff(Off):
    """The same with a wrong gradient behind the kinks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the other, and a little more."""
        return super().forward(x) + Doubled.apply(self.last.bias)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("model", [Off, WronglyOff])
def test_numbers_on_kinks_cost_no_run_for_each_and_hide_no_wrong_gradient(model: type[Off]) -> None:
    case = Case(name="typical", inputs=lambda g: (torch.randn(64, 8, generator=g),))
    spec = Spec(name="off", summary="units that are off", source="this test", build=model, cases=(case,))
    Off.runs = 0
    if model is WronglyOff:
        with pytest.raises(SelfCheckError, match=r"gradient of last\.bias at"):
            reference.make(spec, None, 0, [])
    else:
        reference.make(spec, None, 0, [])
        assert Off.runs < 150


def test_what_gradcheck_rejects_for_another_reason_is_not_checked_beside_kinks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name="typical", inputs=lambda g: (torch.randn(64, 8, generator=g),))
    spec = Spec(name="off", summary="units that are off", source="this test", build=Off, cases=(case,))

    def rejected(*_: object, **__: object) -> None:
        raise gradients.GradcheckError("Backward is not reentrant")

    monkeypatch.setattr(gradients.GradientCheck, "_check_all", rejected)
    with pytest.raises(SelfCheckError, match="not reentrant"):
        reference.make(spec, None, 0, [])


@pytest.fixture(params=range(3))
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def many() -> tuple[Sum, torch.Tensor]:
    torch.manual_seed(0)
    return Sum().double(), torch.randn(64, 8, dtype=torch.float64)


def _gradients(model: Sum, x: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(model(x), [*model.parameters()], COTANGENT), strict=True))


def _agree(model: Sum, x: torch.Tensor, changed: Callable[[str, torch.Tensor], torch.Tensor], seed: int) -> bool:
    """Whether the gradients agree after a change of them."""
    found = _gradients(model, x)
    given = {leaf: changed(name, found[name]) for name, leaf in model.named_parameters()}
    slopes = Slopes(lambda: {"output": model(x)}, {"output": COTANGENT})
    return slopes.agree(model(x), given, torch.Generator().manual_seed(seed))

"""What counts as a kink, and that the judge's own steps never do."""

import pytest
import torch
from torch import nn

import zoo
from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import cotangent, representable, seed_generator
from conformance.float64.wide import Oracle
from conformance.oracle import sampling
from conformance.perturb.kinks import KinkWatch, count_flipped, count_tossed
from conformance.perturb.rounding import Rounding
from zoo.case import Case
from zoo.spec import Spec


def spec_of(build, inputs):
    return Spec(
        name="kinky", summary="", source="", build=build, cases=(Case(name="typical", inputs=inputs),), dtypes="input"
    )


def randn(generator):
    return (torch.randn(8, 6, generator=generator),)


@pytest.mark.parametrize(
    ("build", "kinked"),
    [
        (lambda: lambda x: x.exp() * 2, False),
        (lambda: nn.Linear(6, 3), False),
        (lambda: lambda x: x.relu() * 2, True),
        (lambda: lambda x: x.abs().sqrt(), True),
    ],
    ids=["exp", "linear", "relu", "abs"],
)
def test_an_evaluation_is_kinked_where_the_model_is(build, kinked):
    oracle = Oracle(spec_of(build, randn), seed=0)
    question = oracle.question(oracle.spec.cases[0], 0)
    with KinkWatch() as watch:
        oracle.evaluate(question)
    assert watch.kinked is kinked


@pytest.mark.parametrize(("name", "kinked"), [("relu_amp_op", True), ("exp_op", False)])
def test_an_operator_written_in_python_is_looked_into(name, kinked):
    with KinkWatch() as watch:
        zoo.create_model(name)(torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True))
    assert watch.kinked is kinked


def test_cotangents_are_no_kink_and_are_not_perturbed():
    like = torch.zeros(4, 5, dtype=torch.float64)
    plain = cotangent("output", like, (0, "case"))
    with KinkWatch() as watch, Rounding(PRECISIONS["amp_bf16"], seed_generator("noise")):
        watched = cotangent("output", like, (0, "case"))
    assert not watch.kinked
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("value", [1.0, -65504.0, 1e5, -1e30, float("inf"), float("-inf")])
def test_what_is_representable_stays_inside_the_range_of_float16_or_is_bfloat16s(value):
    (rounded,) = representable(torch.tensor([value]))
    assert rounded == torch.tensor(value).to(torch.bfloat16)


@pytest.mark.parametrize("end", [-1.0, 1.0])
def test_what_is_nearer_to_zero_than_one_stays_so(end):
    x = end * torch.tensor([0.9985, 1.0 - 2.0**-24, 0.998, 1.0, 1.001])
    assert torch.equal(representable(x), end * torch.tensor([0.99609375, 0.99609375, 0.99609375, 1.0, 1.0]))


def test_nan_stays_nan():
    assert representable(torch.tensor([float("nan")])).isnan().all()


def test_drawing_the_inputs_is_not_watched():
    def made_with_kinks(generator):
        x = torch.randn(8, 6, generator=generator)
        return ((x - x).relu() + x.abs(),)  # ties and kinks galore, in the making

    oracle = Oracle(spec_of(lambda: lambda x: x.relu() * 2, made_with_kinks), seed=0)
    assert sampling.choose(oracle, oracle.spec.cases[0]) == 0


def watched(function, *args):
    with KinkWatch(selections=True) as watch:
        function(*args)
    return watch


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clamp(min=0.0)

    @staticmethod
    def backward(_, gradient):
        return gradient


class Rebound(torch.autograd.Function):
    @staticmethod
    def forward(*args):
        _, x = args
        x = x * 2.0
        return x.clamp(min=0.0)

    @staticmethod
    def backward(_, gradient):
        return gradient


class Decorated(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(_, x):
        return x.clamp(min=0.0)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(_, gradient):
        return gradient


class SetUpApart(torch.autograd.Function):
    @staticmethod
    def forward(x):
        x = x * 2.0
        return x.clamp(min=0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, gradient):
        return gradient


def without_gradients(x):
    with torch.no_grad():
        return x.clamp(0.0, 1.0)


@pytest.mark.parametrize(
    ("function", "kinked"),
    [
        (lambda x: x.detach().clamp(0.0, 1.0) + x, False),
        (lambda x: without_gradients(x) + x, False),
        (lambda x: (x > 0).double().clamp(0.0, 1.0) + x, True),
        (lambda x: x + ((x > 0).double() - x).detach(), True),
        (lambda x: torch.where(x > 0, 1.0, 2.0).to(x.dtype) @ x, True),
        (lambda x: x[x > 0].mean(), True),
        (lambda x: ((torch.full_like(x, 0.3).detach() < x).double() + x).sum(), True),
        (lambda x: (x > 0).double().mean(), False),
        (lambda x: x.argmax(), False),
        (lambda x: torch.where(x.detach() > 0, 1.0, 2.0) * x, True),
        (lambda x: (x > 0).sum() + x, True),
        (lambda x: Clamped.apply(x.detach()), False),
        (Clamped.apply, True),
        (Rebound.apply, True),
        (lambda x: Rebound.apply(x.detach()), False),
        (Decorated.apply, True),
        (lambda x: Decorated.apply(x.detach()), False),
        (SetUpApart.apply, True),
        (lambda x: torch.where(x > 0, x, 0.0), True),
        (lambda x: x * (x > 0), True),
        (lambda x: x * (x > 0).double(), True),
        (lambda x: x.masked_fill(x < 0, 0.0), True),
        (lambda x: torch.maximum(x, torch.zeros_like(x)), True),
        (lambda x: torch.func.grad(lambda t: t.abs().sum())(x.detach()), True),
        (nn.functional.relu6, True),
        (nn.functional.selu, True),
        (lambda x: x + (x.round() - x).detach(), True),
        (lambda x: x - x.floor(), True),
        (lambda x: x.detach().round() + x, True),
        (lambda x: x[x.argmax(-1, keepdim=True)], True),
        (lambda x: x[x.detach().argmin(-1, keepdim=True).reshape(1, 1)], True),
        (lambda x: nn.functional.one_hot(x.detach().argmax(-1), 6) * x, True),
        (lambda x: (x.argmax(-1) == 3).double().mean(), False),
    ],
)
def test_a_kink_counts_if_a_gradient_flows_through_it(function, kinked):
    x = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64, requires_grad=True)
    assert watched(function, x * 1.5).kinked is kinked


def test_to_compare_an_input_itself_is_no_kink_because_rounding_does_not_move_it():
    x = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64, requires_grad=True)
    assert not watched(lambda x: x[x > 0].exp(), x).kinked
    assert watched(lambda x: x[x * 2 > 0].exp(), x).kinked


@pytest.mark.parametrize(
    ("function", "at"),
    [
        (torch.round, 0.5),
        (lambda x: x.round(decimals=1), 0.05),
        (torch.floor, 1.0),
        (lambda x: (-x).floor(), -2.0),
        (torch.ceil, 1.0),
        (torch.trunc, 1.0),
        (torch.frac, 1.0),
        (torch.sign, 0.0),
    ],
)
def test_a_number_that_crosses_a_jump_is_flipped(function, at):
    below, above, further = (
        watched(function, torch.tensor([[at + gap]], dtype=torch.float64, requires_grad=True))
        for gap in (-0.01, 0.01, 0.02)
    )
    assert count_flipped(below, above) == 1
    assert count_flipped(above, further) == 0
    assert above.margin == pytest.approx(0.01 / abs(at + 0.01))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(-1.0, 1.0),
        lambda x: x.clamp(min=torch.full((), -1.0, dtype=torch.float64)),
        lambda x: x.clamp(max=1.0),
        nn.functional.hardtanh,
        lambda x: nn.functional.hardshrink(x, 1.0),
        lambda x: nn.functional.softshrink(x, 1.0),
        lambda x: torch.maximum(x, torch.ones_like(x)),
    ],
)
def test_a_tie_at_a_limit_that_rounding_does_not_move_is_not_tossed(function):
    x = torch.tensor([[-1.0, 0.25, 1.0]], dtype=torch.float64, requires_grad=True)
    plain, perturbed = KinkWatch(), KinkWatch()
    with plain:
        function(x)
    with Rounding(PRECISIONS["fp32"], seed_generator("noise")), perturbed:
        function(x)
    assert sum(int(tie.sum()) for tie in plain.ties) > 0
    assert count_tossed(plain, perturbed) == 0


def test_a_tie_at_a_limit_that_rounding_moves_is_tossed():
    x = torch.tensor([[-1.0, 0.25, 1.0]], dtype=torch.float64, requires_grad=True)
    plain, perturbed = KinkWatch(), KinkWatch()
    with plain:
        (x / 0.5 * 0.5).clamp(-1.0, 1.0)
    with Rounding(PRECISIONS["fp32"], seed_generator("noise")), perturbed:
        (x / 0.5 * 0.5).clamp(-1.0, 1.0)
    assert count_tossed(plain, perturbed) == 2


@pytest.mark.parametrize(
    ("select", "equal"),
    [
        (lambda x: x.max(1), 1),
        (lambda x: x.max(), 1),
        (lambda x: x.amin(1), 0),
        (lambda x: x.aminmax(dim=1), 1),
        (lambda x: x.argmax(-1), 1),
        (lambda x: x.topk(1, 1), 1),
        (lambda x: x.topk(1, 1, largest=False), 0),
        (lambda x: x.sort(-1), 1),
        (lambda x: x.sort(dim=0, descending=True), 0),
        (lambda x: x.kthvalue(2, 1), 1),
        (lambda x: nn.functional.max_pool2d(x[None], (1, 3)), 1),
        (lambda x: nn.functional.adaptive_max_pool2d(x[None], 1), 1),
    ],
)
def test_rivals_that_are_equal_are_noted(select, equal):
    x = torch.tensor([[5.0, 1.0, 5.0], [2.0, 3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    assert sum(int(found.sum()) for found in watched(select, x).equals) == equal


def test_the_margin_is_the_smallest_distance_to_a_kink():
    x = torch.tensor([3.0, -0.5, 4.0, 5.0], dtype=torch.float64, requires_grad=True)
    with KinkWatch() as watch:
        x.relu()
        (x - 4.5).abs()
        x.exp()
    assert watch.margin == pytest.approx(0.5 / float(x.detach().square().mean().sqrt()))
    with KinkWatch() as watch:
        x.exp()
    assert watch.margin == float("inf")

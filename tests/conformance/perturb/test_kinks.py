"""What counts as a kink, and that the judge's own steps never do."""

import contextlib

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Categorical, Distribution
from torch.multiprocessing.reductions import StorageWeakRef

import zoo
from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import cotangent, representable, seed_generator
from conformance.float64.replacements import without_validation
from conformance.float64.wide import Oracle
from conformance.oracle import draws
from conformance.perturb.kinks import MARGIN, NUDGES, KinkWatch, count_flipped, count_tossed
from conformance.perturb.rounding import Rounding
from zoo import Case, Spec


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


def test_what_is_representable_stays_inside_the_range_of_float16_or_is_bfloat16s():
    values = torch.tensor([1.0, -65504.0, 1e5, -1e30, float("inf"), float("-inf"), float("nan")])
    assert torch.equal(representable(values).nan_to_num(0.5), values.bfloat16().float().nan_to_num(0.5))


@pytest.mark.parametrize("end", [-1.0, 1.0])
def test_what_is_nearer_to_zero_than_one_stays_so(end):
    x = end * torch.tensor([0.9985, 1.0 - 2.0**-24, 0.998, 1.0, 1.001])
    assert torch.equal(representable(x), end * torch.tensor([0.99609375, 0.99609375, 0.99609375, 1.0, 1.0]))


def test_drawing_the_inputs_is_not_watched():
    def made_with_kinks(generator):
        x = torch.randn(8, 6, generator=generator)
        return ((x - x).relu() + x.abs(),)  # ties and kinks galore, in the making

    oracle = Oracle(spec_of(lambda: lambda x: x.relu() * 2, made_with_kinks), seed=0)
    assert draws.choose_picks(oracle, oracle.spec.cases[0]) == 0


def watched(function, *args, rows=0):
    with KinkWatch(rows, selections=True) as watch:
        function(*args)
    return watch


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clamp(min=0.0)

    @staticmethod
    def backward(_, gradient):
        return gradient


class Rebound(Clamped):
    @staticmethod
    def forward(*args):
        _, x = args
        x = x * 2.0
        return x.clamp(min=0.0)


class Decorated(Clamped):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(_, x):
        return x.clamp(min=0.0)


class SetUpApart(Clamped):
    @staticmethod
    def forward(x):
        x = x * 2.0
        return x.clamp(min=0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@pytest.mark.parametrize(
    ("function", "kinked"),
    [
        (lambda x: x.detach().clamp(0.0, 1.0) + x, False),
        (lambda x: torch.no_grad()(torch.clamp)(x, 0.0, 1.0) + x, False),
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
        (lambda x: torch.func.grad(lambda t: t.abs().sum())(x.detach()), True),
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
        (lambda x: x.round(decimals=1), 0.05),
        (lambda x: (-x).floor(), -2.0),
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
    ("function", "tossed"),
    [
        (lambda x: x.clamp(min=torch.full((), -1.0, dtype=torch.float64)), 0),
        (lambda x: nn.functional.hardshrink(x, 1.0), 0),
        (lambda x: torch.maximum(x, torch.ones_like(x)), 0),
        (lambda x: (x / 0.5 * 0.5).clamp(-1.0, 1.0), 2),
    ],
)
def test_a_tie_at_a_limit_is_tossed_if_rounding_moves_it(function, tossed):
    x = torch.tensor([[-1.0, 0.25, 1.0]], dtype=torch.float64, requires_grad=True)
    plain, perturbed = KinkWatch(), KinkWatch()
    with plain:
        function(x)
    with Rounding(PRECISIONS["fp32"], seed_generator("noise")), perturbed:
        function(x)
    assert sum(int(tie.sum()) for tie in plain.ties) > 0
    assert count_tossed(plain, perturbed) == tossed


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
    watch = watched(lambda x: (x.relu(), (x - 4.5).abs(), x.exp()), x)
    assert watch.margin == pytest.approx(0.5 / float(x.detach().square().mean().sqrt()))
    assert watched(torch.exp, x).margin == float("inf")


# Ops that keep the best of each group of numbers.


@pytest.mark.parametrize("of", ["scatter", "index"])
@pytest.mark.parametrize("selects", [True, False])
@pytest.mark.filterwarnings("ignore:index_reduce")  # in beta
def test_the_best_of_each_group_is_a_kink(of, selects):
    x = torch.tensor([[1.0, 2.0], [3.0, 2.0], [0.5, 7.0]], dtype=torch.float64, requires_grad=True)
    groups, target = torch.tensor([0, 0, 1]), torch.zeros(2, 2, dtype=torch.float64)
    with KinkWatch(selections=True) as watch:
        if of == "scatter":
            target.scatter_reduce(0, groups[:, None].expand(-1, 2), x, "amax" if selects else "sum", include_self=False)
        else:
            target.index_reduce(0, groups, x, "amax" if selects else "mean", include_self=False)
    assert watch.kinked == selects
    if selects:
        assert watch.margin == pytest.approx(2.0 / float(x.detach().square().mean().sqrt()))
        assert watch.equals[0].tolist() == [[False, True], [False, False]]  # two elements are 2.0


# Decisions by numbers that a model computes and then detaches: masks, indices, whole numbers.

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


@pytest.mark.parametrize("detach", DETACH.values(), ids=DETACH)
@pytest.mark.parametrize("decide", DECIDE.values(), ids=DECIDE)
def test_a_decision_that_meets_a_gradient_is_a_kink(decide, detach):
    assert watched(lambda x: (x * 2) * detach(decide, x * 2), numbers()).kinked


@pytest.mark.parametrize("name", [name for name in DECIDE if name != "argmax"])  # an argmax of anything counts
def test_a_decision_by_an_input_or_a_constant_is_none(name):
    decide, table = DECIDE[name], torch.linspace(-1, 1, 48, dtype=torch.float64).view(8, 6)
    assert not watched(lambda x: (x * 2) * decide(table), numbers()).kinked
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
    edges = torch.tensor([0.5, 3.0], dtype=torch.float64)
    for decide, steps in (
        (lambda h: h > 2, [0.5, 1.75]),
        (lambda h: h.floor(), [0.0, 0.0]),
        (lambda h: h.topk(1, -1).indices, [1.5, 1.0]),
        (lambda h: torch.bucketize(h, edges), [0.5, 0.25]),
    ):
        watch = watched(lambda x, decide=decide: (x * 1.0).sum() * decide((x * 1.0).detach()), x, rows=2)
        assert (watch.margins * rms).tolist() == pytest.approx(steps)


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


# Draws by probabilities that a model computes: a little more or less of one makes them others.

SAMPLERS = {
    "multinomial": lambda p: torch.multinomial(p, 1)[:, 0],
    "bernoulli": torch.bernoulli,
    "poisson": lambda p: torch.poisson(p * 9),
    "categorical": lambda p: Categorical(probs=p).sample(),
    "independent": lambda p: Bernoulli(probs=p).sample(),
}


def probabilities(rows=1000):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, 4, generator=generator, dtype=torch.float64).softmax(-1).requires_grad_()


def drawn_under_watch(sample, p, rows=0):
    torch.manual_seed(3)
    with KinkWatch(rows) as watch, torch.no_grad():
        drawn = sample(p * 1.0)
    with watch:
        (p.sum(-1) * drawn.reshape(len(p), -1)[:, 0]).sum()
    return watch, drawn


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
def test_a_draw_that_meets_a_gradient_is_a_kink_and_to_watch_changes_none(sample):
    watch, drawn = drawn_under_watch(sample, probabilities())
    after = torch.rand(3)
    assert watch.kinked
    assert watch.margin in NUDGES
    torch.manual_seed(3)
    assert torch.equal(sample(probabilities() * 1.0), drawn)
    assert torch.equal(torch.rand(3), after)


def test_the_rows_that_hang_on_a_little_are_those_that_a_little_changes():
    p = probabilities()
    watch, drawn = drawn_under_watch(SAMPLERS["multinomial"], p, rows=len(p))
    generator = torch.Generator().manual_seed(1)
    changed = torch.zeros(len(p), dtype=torch.bool)
    for _ in range(100):
        torch.manual_seed(3)
        noise = torch.rand(p.shape, generator=generator, dtype=torch.float64) * 2 - 1
        changed |= SAMPLERS["multinomial"]((p * (1 + 2.0**-8 * noise)).detach()) != drawn
    assert bool(changed.any())
    assert float(watch.margins[changed].max()) <= MARGIN
    assert float((watch.margins == float("inf")).double().mean()) > 0.5


def test_a_dropout_is_no_kink():
    p = probabilities()
    assert not drawn_under_watch(lambda p: torch.bernoulli(torch.full_like(p, 0.5)), p)[0].kinked
    assert not drawn_under_watch(lambda p: torch.empty_like(p).bernoulli_(0.5), p)[0].kinked
    assert not drawn_under_watch(lambda p: torch.bernoulli(p, 0.5), p)[0].kinked


@pytest.mark.parametrize("sample", [torch.bernoulli, torch.poisson])
def test_probabilities_of_no_rows(sample):
    with KinkWatch() as watch:
        sample(torch.empty(0, 4))
    assert not watch.kinked


def test_the_checks_of_distributions_are_off_in_a_context(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile turns them off, and not on again
    wrong = torch.tensor([0.3, 0.3])
    with without_validation():
        Bernoulli(probs=wrong * 4)
        with pytest.raises(ValueError, match="probs"):
            Bernoulli(probs=wrong * 4, validate_args=True)
    with pytest.raises(ValueError, match="probs"):
        Bernoulli(probs=wrong * 4)

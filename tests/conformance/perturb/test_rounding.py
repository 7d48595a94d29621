"""The perturbed runs: what rounds is perturbed by the right amount, what does not is left alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import zoo
from conformance.axes import PRECISIONS
from conformance.evaluate.inputs import seed_generator
from conformance.gates.budget import NOISE
from conformance.perturb.rounding import LARGE, WINDOW, Nearest, Noise, Rounding

PRECISION = PRECISIONS["amp_bf16"]
ETA = NOISE * PRECISION.unit


def perturbed(function, *args, precision=PRECISION, run=0):
    with Rounding(precision, seed_generator("test", run)):
        return function(*args)


@pytest.fixture
def x():
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 3.0


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_one_rounding_moves_each_element_by_at_most_its_share_and_nearly_that(precision):
    x = torch.ones(4096, dtype=torch.float64)
    eta = NOISE * precision.unit
    strays = (perturbed(torch.clone, perturbed(lambda t: t / 1.0, x, precision=precision)) - 1).abs()
    assert float(strays.max()) <= 3.01 * eta + 4 * eta * eta  # operand and result, each once
    assert float(strays.max()) > 1.5 * eta
    assert 0.5 * eta < float(strays.square().mean().sqrt()) < 1.2 * eta


def test_noise_is_fresh_for_each_element_run_and_seeded(x):
    one, other, again = (perturbed(torch.exp, x, run=run) for run in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    noise = one / x.exp() - 1
    assert len(set(noise.flatten().tolist())) > 100
    assert abs(float(noise.mean())) < 0.3 * float(noise.std())


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.t()[::2].reshape(-1),
        torch.ops.aten.t_copy,
        lambda x: x == x.amax(-1, keepdim=True),
        lambda x: torch.where(x > 3, x, -x),
        lambda x: torch.histc(torch.tensor([0.3, 1.1, 1.9, 2.7], dtype=x.dtype) / 1, bins=4, min=0, max=3),
        lambda x: x.clone().masked_fill_(x > 3, 0.0),
        lambda x: nn.functional.max_pool2d(x[None, None], 2),
        lambda x: x.scatter_reduce(0, torch.zeros(16, 8, dtype=torch.int64), x, "amax"),
        lambda x: x.to(torch.float32).double(),
        lambda x: x.sum(0, keepdim=True)[:0],
        lambda x: x.reshape(16, 8, 1).sum(-1),
        torch.zeros_like,
        lambda x: (x > 3).sum(),
    ],
)
def test_what_moves_or_selects_is_exact(x, move):
    assert torch.equal(perturbed(move, x), move(x))


@pytest.mark.parametrize(
    "rounding",
    [
        lambda x: x + x,
        lambda x: x.sum(0),
        lambda x: x @ x.t(),
        lambda x: x.clone().mul_(1.5),
        lambda x: nn.functional.layer_norm(x, (8,)),
        nn.functional.gelu,
        lambda x: x.round(decimals=2),
        lambda x: x.scatter(0, torch.zeros(16, 8, dtype=torch.int64), 1.5, reduce="multiply"),
        lambda x: x.scatter_reduce(0, torch.zeros(16, 8, dtype=torch.int64), x, "sum"),
        lambda x: torch.zeros_like(x).index_add_(0, torch.zeros(16, dtype=torch.int64), x),
        lambda x: x.norm(),
        lambda x: x.lerp(x.flip(0), 0.5),
        lambda x: nn.functional.avg_pool2d(x[None, None], 2),
    ],
)
def test_what_rounds_is_moved_a_little_and_no_operand_is_written(x, rounding):
    kept, wanted, found = x.clone(), rounding(x), perturbed(rounding, x)
    assert torch.equal(x, kept)
    far = float((found - wanted).norm() / wanted.norm())
    assert 0.01 * ETA < far < 10 * ETA


def test_what_an_operator_written_in_python_does_inside_is_perturbed(x):
    function, operator = zoo.create_model("batch_norm2d"), zoo.create_model("batch_norm2d_op")
    images = x.reshape(2, 4, 4, 4)
    for run in range(3):
        assert torch.equal(perturbed(function, images, run=run), perturbed(operator, images, run=run))
    assert not torch.equal(perturbed(operator, images), operator(images))


def test_an_optimisers_step_rounds_to_float32(x):
    def stepped(optimizer_of):
        w = nn.Parameter(torch.full_like(x, 1.3))
        optimizer = optimizer_of([w])
        w.grad = torch.full_like(w, 0.3)
        optimizer.step()
        return w.detach()

    def descent(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    strays = (perturbed(stepped, descent) - 1).abs().max()
    assert 0 < strays < 32 * PRECISIONS["fp32"].unit
    before = torch.optim.SGD([nn.Parameter(x.clone())], lr=1.0)
    before.step()  # the hooks are gone
    assert (perturbed(lambda: x * 2) - x * 2).abs().max() > 2.0**-10


def test_a_list_that_an_op_writes_in_place_is_written():
    """Clipping of gradients and optimisers on a GPU use such ops."""

    def halved():
        tensors = [torch.ones(4, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
        torch._foreach_mul_(tensors, 0.5)
        return torch.cat(tensors)

    strays = (perturbed(halved) - 0.5).abs()
    assert 0 < float(strays.max()) < 0.1


def test_long_sums_stray_by_the_root_of_their_length():
    row = torch.ones(1, 1 << 14, dtype=torch.float64)
    column = torch.ones(1 << 14, 256, dtype=torch.float64)
    far = perturbed(torch.mm, row, column, precision=PRECISIONS["fp32"]) / (1 << 14) - 1
    eta = NOISE * 2.0**-24 * math.sqrt(1 << 14)
    assert 0.3 * eta < float(far.abs().max()) < 1.1 * eta


def test_backward_is_perturbed_too(x):
    def slope():
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(torch.sin(leaf), leaf, torch.ones_like(leaf))
        return found

    far = float((perturbed(slope) - x.cos()).abs().max())
    assert 0.1 * ETA < far < 100 * ETA


def test_running_statistics_are_perturbed_although_no_schema_says_they_are_written(x):
    norm = nn.BatchNorm1d(8).double()
    perturbed(norm, x)
    exact = nn.BatchNorm1d(8).double()
    exact(x)
    for found, wanted in ((norm.running_mean, exact.running_mean), (norm.running_var, exact.running_var)):
        assert not torch.equal(found, wanted)
        torch.testing.assert_close(found, wanted, rtol=10 * ETA, atol=0.0)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    "add",
    [
        lambda index, terms: torch.zeros(2, 8, dtype=terms.dtype).index_add(0, index, terms),
        lambda index, terms: torch.zeros(2, 8, dtype=terms.dtype).index_put((index,), terms, accumulate=True),
        lambda index, terms: torch.zeros(2, 8, dtype=terms.dtype).scatter_add_(
            0, index[:, None].expand_as(terms), terms
        ),
        lambda index, terms: torch.ops.aten.embedding_dense_backward(terms, index, 2, -1, False),
    ],
    ids=["index_add", "index_put", "scatter_add", "embedding"],
)
@pytest.mark.parametrize(("name", "adds_low"), [("bf16", True), ("amp_bf16", False)])
def test_a_cast_model_rounds_each_partial_sum_of_a_place(add, name, adds_low):
    index = torch.tensor([0] * 400 + [1])  # 400 terms in one place, one in the other
    terms = torch.ones(401, 8, dtype=torch.float64)
    truth = add(index, terms)
    runs = [(perturbed(add, index, terms, precision=PRECISIONS[name], run=run) / truth - 1).abs() for run in range(4)]
    many, one = torch.stack(runs).amax((0, 2)).tolist()
    assert one <= 2.5 * ETA
    assert (many > 3 * ETA) is adds_low
    assert many < (20 / NOISE + 3) * ETA  # √400 roundings, and those of the op itself


def error_of_inverse(number):
    return abs(float(torch.tensor(1 / number).bfloat16()) * number - 1)


@pytest.mark.parametrize(
    ("divide", "error"),
    [
        (lambda x: functional.dropout(x, 0.1), error_of_inverse(0.9)),
        # a mode may round one of both
        (lambda x: functional.dropout(functional.dropout(x, 0.1), 0.1), 2**0.5 * error_of_inverse(0.9)),
        (lambda x: functional.dropout1d(x[None], 0.1), error_of_inverse(0.9)),
        (lambda x: x * ((x > 0).to(x) / 0.75), error_of_inverse(0.75)),
        (lambda x: functional.dropout(x, 0.5), 0.0),  # 1 / 0.5 is not rounded
        (lambda x: functional.dropout(x, 1.0), 0.0),
        (lambda x: x / 0.9, 0.0),
        (lambda x: torch.zeros_like(x) / 0.9, 0.0),
        (lambda x: x * (x > 0).to(x) / (x > 1).to(x), 0.0),
        (lambda x: x.requires_grad_().mean().backward(), 0.0),  # its gradient is no mask
    ],
)
def test_a_rounded_run_knows_how_the_scale_of_a_mask_rounds(x, divide, error):
    mode = Nearest(PRECISIONS["amp_bf16"])
    with mode:
        divide(x)
    assert mode.constant == pytest.approx(error, abs=1e-12)


@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("share", [0.01, 0.9])
def test_of_a_tensor_of_any_size_the_smallest_numbers_may_vanish(count, share):
    fp16 = PRECISIONS["amp_fp16"]
    small, tiny = int(share * count), 2.0**-26  # half of float16's smallest number is 2**-25
    x = torch.ones(count, dtype=torch.float64)
    x[:small], x[small] = tiny, 0.0
    kept = perturbed(torch.mm, x[:, None], torch.ones(1, 1, dtype=torch.float64), precision=fp16)
    strays = (kept.flatten() - x).abs()
    assert float(strays[:small].amax()) > 0.5 * tiny
    assert float(strays[:small].amax()) <= 3.0 * tiny
    assert float(strays[small]) == 0.0
    assert float(strays[small + 1 :].amax()) <= 4 * NOISE * fp16.unit
    assert float(strays[small + 1 :].amax()) > NOISE * fp16.unit


@pytest.mark.parametrize("count", [1000, LARGE])
def test_a_rounded_run_of_any_size_stores_small_numbers_as_float16_does(count):
    fp16 = PRECISIONS["amp_fp16"]
    x = torch.ones(count, dtype=torch.float64)
    x[::21], x[7::21], x[14::21] = 0.3 * 2.0**-24, 0.7 * 2.0**-24, 1.4 * 2.0**-24
    mode = Nearest(fp16)
    with mode:
        kept = torch.mm(x[:, None], torch.ones(1, 1, dtype=torch.float64)).flatten()
    assert torch.equal(kept, x.to(torch.float16).double())


@pytest.mark.parametrize("kind", [lambda precision: Rounding(precision, seed_generator("complex")), Nearest])
def test_complex_numbers_do_not_underflow(kind):
    """No precision stores them in float16."""
    x = torch.full((8,), 2.0**-30, dtype=torch.complex128, requires_grad=True)
    with kind(PRECISIONS["amp_fp16"]):
        (gradient,) = torch.autograd.grad((x * x).real.sum(), x)
    assert bool((gradient != 0).all())


def test_forward_mode_derivatives_are_perturbed_too():
    x, tangent = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def derived():
        return torch.func.jvp(lambda y: y.t() + y.t().exp(), (x,), (tangent,))  # it asks for the layout of meta tensors

    for ours, theirs in zip(perturbed(derived, precision=PRECISIONS["fp32"]), derived(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert not torch.equal(ours, theirs)


# Small whole numbers round nothing.

WHOLE = torch.arange(12, dtype=torch.float64).reshape(3, 4)
HALVES = WHOLE / 2 + 0.5
WHOLE_OPS = [
    lambda x: x + 1,
    lambda x: x * 2.0 - x,
    lambda x: x // 3 + x % 5 - x.fmod(7),
    lambda x: torch.div(x, 2, rounding_mode="trunc") - x.div(4, rounding_mode="floor"),
    lambda x: x.sum(0),
    lambda x: x.cumsum(1),
    lambda x: (x > 3).to(x.dtype).t() @ torch.ones(3, 2, dtype=x.dtype) + x[:1].t(),
    lambda x: torch.zeros(3, 4, dtype=x.dtype).index_add_(0, torch.tensor([0, 0, 1]), x),
]


@pytest.mark.parametrize("op", WHOLE_OPS)
def test_small_whole_numbers_round_nothing_and_others_do(op):
    assert torch.equal(perturbed(op, WHOLE), op(WHOLE))
    assert not torch.equal(perturbed(op, HALVES), op(HALVES))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x * 100,
        lambda x: x + 250.0,
        lambda x: x * 0.5,
        lambda x: x / 1.0,
        lambda x: x % 0.7,
        lambda x: x.exp(),
        lambda _: torch.tensor([200.0, 201.0, -200.0, -200.0], dtype=torch.float64).sum(),  # it may round on its way
    ],
    ids=["large", "sum", "fraction", "division", "remainder", "exp", "both signs"],
)
def test_what_a_low_precision_may_round_is_perturbed(op):
    assert not torch.equal(perturbed(op, WHOLE), op(WHOLE))


# Ops whose results have many roundings inside, and ops that refuse what noise could make of their inputs.

FP32, BF16 = PRECISIONS["fp32"], PRECISIONS["amp_bf16"]
MATRIX = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 4 * torch.eye(8)


def strayed(function, precision):
    """How far perturbed runs stray, relative to the result, the farthest."""
    truth, runs = function(), [perturbed(function, precision=precision, run=run) for run in range(8)]
    return max(float((found - truth).norm() / truth.norm()) for found in runs)


@pytest.mark.parametrize(
    "decomposed",
    [torch.linalg.svdvals, torch.linalg.inv, torch.linalg.matrix_exp, torch.linalg.det, lambda x: torch.linalg.qr(x).R],
    ids=["svdvals", "inv", "matrix_exp", "det", "qr"],
)
def test_what_is_computed_from_a_whole_matrix_strays_more_than_one_rounding(decomposed):
    assert NOISE * FP32.unit < strayed(lambda: decomposed(MATRIX), FP32) < 2000 * FP32.unit
    single = decomposed(MATRIX.float()).double()
    truth = decomposed(MATRIX)
    assert (single - truth).norm() <= 1.5 * strayed(lambda: decomposed(MATRIX), FP32) * truth.norm()


def entropy_of_certain_ones():
    """Noise may move no probability out of its range."""
    target = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    probability = torch.tensor([0.0, 1.0, 0.7, 0.2], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(functional.binary_cross_entropy(probability, target), probability)[0][2:]


def margin_loss():
    """It hands a mask to its backward, which refuses any number but 0 and 1."""
    labels = torch.tensor([[3, 0, -1, 1], [1, -1, 2, 0]])
    scores = torch.tensor([[0.3, -1.2, 0.9, 0.1], [2.0, 0.4, -0.3, 0.7]], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(functional.multilabel_margin_loss(scores, labels), scores)[0]


@pytest.mark.parametrize("gradient", [entropy_of_certain_ones, margin_loss])
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "amp_bf16"])
def test_noise_makes_no_number_that_an_op_refuses(precision, gradient):
    assert 0 < strayed(gradient, precision) < 4 * NOISE * precision.unit


# The noise: its range, its strides, and that of large tensors from the pool.

SMALL = 2.0**-10


def noise(*words):
    return Noise(seed_generator(*words))


@pytest.fixture(params=[1000, LARGE, WINDOW + 12345], ids=["small", "pool", "two windows"])
def count(request):
    return request.param


def test_factors_are_uniform_between_their_ends(count):
    found = noise("run").perturb(torch.ones(count, dtype=torch.float64), 2 * SMALL, SMALL) - 1.0
    assert -2 * SMALL <= found.amin() < -1.95 * SMALL
    assert 0.95 * SMALL < found.amax() <= SMALL
    assert abs(float(found.mean()) + SMALL / 2) < 4 * 1.5 * SMALL / (3 * count) ** 0.5
    assert float(found.std()) == pytest.approx(1.5 * SMALL / 3**0.5, rel=0.05)


def test_infinities_and_zeros_stay(count):
    special = torch.tensor([torch.inf, -torch.inf, 0.0], dtype=torch.float64).repeat(count // 3 + 1)
    assert torch.equal(noise("run").perturb(special, SMALL, SMALL), special)


def test_two_runs_differ_and_one_seed_repeats_itself(count):
    ones = torch.ones(count, dtype=torch.float64)
    first, again, other = (noise(word).perturb(ones, SMALL, SMALL) for word in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert (first != other).double().mean() > 0.99


def test_no_number_comes_twice_within_a_window():
    found = noise("run").perturb(torch.ones(WINDOW, dtype=torch.float64), SMALL, SMALL)
    half = WINDOW // 2
    assert abs(float(torch.dot(found[:half] - 1.0, found[half:] - 1.0))) < 5 * SMALL**2 / 3 * half**0.5


def test_small_tensors_read_on_so_no_number_comes_twice_in_them():
    run = noise("run")
    numbers = torch.cat([run.uniform(torch.Size([LARGE - 1])) for _ in range(WINDOW // LARGE)])
    assert len(numbers.unique()) > len(numbers) - 1000  # in 2^32 possible ones, a hundred meet by chance


@pytest.mark.parametrize("side", [70, 700], ids=["small", "pool"])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.T,
        lambda t: t[:, ::2],
        lambda t: t[:1].expand_as(t),
        lambda t: t.unflatten(1, (7, -1)).unflatten(0, (10, -1)).permute(0, 3, 1, 2),
    ],
    ids=["contiguous", "transposed", "gaps", "expanded", "channels last"],
)
def test_the_result_has_the_strides_of_a_dense_tensor(view, side):
    tensor = view(torch.randn(side, side, dtype=torch.float64))
    assert (tensor.numel() >= LARGE) == (side == 700)
    found = noise("run").perturb(tensor, SMALL, SMALL)
    assert found.stride() == torch.empty_like(tensor).stride()
    ratio = found / tensor - 1.0
    assert ratio.abs().amax() <= SMALL * (1.0 + 1e-9)
    assert ratio.std() == pytest.approx(SMALL / 3**0.5, rel=0.05)
    assert abs(torch.corrcoef(ratio.reshape(side, -1))[0, 1]) < 0.3


def test_complex_numbers_get_one_factor_for_both_parts():
    tensor = torch.randn(LARGE, dtype=torch.complex128)
    ratio = noise("run").perturb(tensor, SMALL, SMALL) / tensor
    assert ratio.imag.abs().amax() < 1e-12
    assert 0.9 * SMALL < (ratio.real - 1.0).abs().amax() <= SMALL * (1.0 + 1e-9)


def test_the_pool_is_not_written(count):
    before = noise("run").uniform(torch.Size([LARGE])).clone()
    noise("other").perturb(torch.ones(count, dtype=torch.float64), SMALL, SMALL).zero_()
    noise("other").uniform(torch.Size([count])).mul_(0.0)
    assert torch.equal(noise("run").uniform(torch.Size([LARGE])), before)

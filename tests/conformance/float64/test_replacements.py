"""What stands in torch's place in the oracle: attention, `torch.cond`, grouped products, random draws."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.axes import PRECISIONS
from conformance.evaluate.process_state import keep_switches
from conformance.float64 import replacements
from conformance.float64.replacements import FUNCTIONS, grouped_mm
from conformance.float64.wide import widen
from conformance.perturb.kinks import KinkWatch
from conformance.perturb.rounding import Nearest

newer_torch = pytest.mark.skipif(not FUNCTIONS, reason="this torch is older than grouped products")

# Attention runs op by op, so that the perturbed runs reach what a fused kernel rounds inside.


class Names(TorchDispatchMode):
    """Notes the names of all ops."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def names_of_ops(**options):
    """The result for five tokens, and the names of the ops that made it and its gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64).requires_grad_()
    with widen(), Names() as names:
        result = nn.functional.scaled_dot_product_attention(q, k, v, **options)
        result.square().sum().backward()
    return result, names.seen


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()}, {"scale": 0.1}]
)
def test_the_ops_of_the_formula_run_and_not_one_kernel(options, monkeypatch):
    result, names = names_of_ops(**options)
    assert not [name for name in names if "attention" in name]
    assert "exp" in names
    monkeypatch.setattr(replacements, "MOST_SCORES", 2 * 4 * 5 * 5 - 1)
    fused, names = names_of_ops(**options)
    assert [name for name in names if "attention" in name]
    torch.testing.assert_close(result, fused)
    assert torch.backends.cuda.flash_sdp_enabled()  # as before, for the cells


TOKENS = 200  # four blocks of queries


def gradients(function, dtype=torch.float64, tokens=TOKENS, **options):
    """What an attention returns, and its gradients; those of keys and values are sums over all queries."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, tokens, 8, generator=generator).bfloat16().to(dtype).requires_grad_() for _ in "qkv")
    result = function(q, k, v, **options)
    cotangent = 1.0 + torch.rand(result.shape, generator=generator).bfloat16().to(dtype)  # long sums of one sign
    return result, *torch.autograd.grad(result, (q, k, v), cotangent)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(3)},
        {"attn_mask": torch.linspace(-1, 1, TOKENS, dtype=torch.float64).view(1, TOKENS)},
        {"attn_mask": torch.linspace(-1, 1, TOKENS, dtype=torch.float64).expand(1, 2, 1, TOKENS)},
        {"attn_mask": torch.linspace(-1, 1, 2 * TOKENS**2, dtype=torch.float64).view(1, 2, TOKENS, TOKENS)},
        {"scale": 0.1},
    ],
)
def test_blocks_of_queries_change_nothing_but_roundings(options):
    torch.testing.assert_close(
        gradients(replacements.attention, **options), gradients(replacements.FUNCTION, **options)
    )


def test_dropout_draws_what_it_draws_without_blocks():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        blocks = gradients(replacements.attention, dropout_p=0.5)
        torch.manual_seed(3)
        torch.testing.assert_close(blocks, gradients(replacements.FUNCTION, dropout_p=0.5))


def test_rounded_runs_are_as_far_off_as_the_kernel_that_adds_up_block_by_block(monkeypatch):
    tokens = 760  # twelve blocks

    def error_of_values(rounded):
        return float((rounded[3] - wanted).norm() / wanted.norm())

    wanted = gradients(replacements.attention, tokens=tokens)[3]
    kernel = error_of_values(gradients(replacements.FUNCTION, torch.bfloat16, tokens))
    with Nearest(PRECISIONS["amp_bf16"]):
        blocks = error_of_values(gradients(replacements.attention, tokens=tokens))
        monkeypatch.setattr(replacements, "BLOCKS", ((0, tokens),))
        whole = error_of_values(gradients(replacements.attention, tokens=tokens))
    assert 0.8 < blocks / kernel < 1.25
    assert whole / kernel < 0.8


def test_rounded_runs_are_as_far_off_as_the_kernel_that_takes_a_difference_from_its_rounded_output():
    """Keys and values share a large part. It cancels in the gradient of the queries, but for the output's rounding."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, cotangent = torch.randn(4, 2, 2, 50, 32, generator=generator).half()
    q, k, v = q / 8, k / 8 + 1, v / 8 + 1

    def error(function, dtype=torch.float64):
        query = q.to(dtype).requires_grad_()
        result = function(query, k.to(dtype), v.to(dtype))
        (found,) = torch.autograd.grad(result, query, cotangent.to(dtype))
        return float((found - wanted).norm() / wanted.norm())

    def of_a_softmax(*arguments):
        with sdpa_kernel(SDPBackend.MATH):
            return replacements.FUNCTION(*arguments)

    exact = q.double().requires_grad_()
    (wanted,) = torch.autograd.grad(replacements.FUNCTION(exact, k.double(), v.double()), exact, cotangent.double())
    kernel = error(replacements.FUNCTION, torch.float16)
    with Nearest(PRECISIONS["amp_fp16"]):
        assert error(replacements.attention) > 0.8 * kernel
        assert error(of_a_softmax) < 0.2 * kernel


def test_queries_share_keys_as_torch_lets_them():
    q, k, v = (torch.randn(2, heads, 40, 8, dtype=torch.float64) for heads in (6, 2, 2))
    found = replacements.attention(q, k, v, enable_gqa=True, scale=-0.3)
    each = [tensor.repeat_interleave(3, -3) for tensor in (k, v)]
    torch.testing.assert_close(found, replacements.FUNCTION(q, *each, scale=-0.3))


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_no_queries_or_no_keys(queries, keys):
    q, k = torch.randn(2, queries, 8, dtype=torch.float64), torch.randn(2, keys, 8, dtype=torch.float64)
    torch.testing.assert_close(replacements.attention(q, k, k), replacements.FUNCTION(q, k, k))


@newer_torch
@pytest.mark.parametrize("tokens", [5, 40])
def test_a_query_without_a_key_gets_zeros(tokens):
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    mask[2] = False
    wanted = gradients(replacements.FUNCTION, tokens=tokens, attn_mask=mask)
    found = gradients(replacements.attention, tokens=tokens, attn_mask=mask)
    torch.testing.assert_close(found, wanted)
    assert not found[0][..., 2, :].any()


# `torch.cond` in the oracle: values and gradients as torch gives them, and modes that see what runs.


X = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
TWOS = torch.full_like(X, 2.0)


def model(x, weights, *, positive):
    a, b = weights
    return torch.cond(torch.tensor(positive), lambda y: (y * a).relu(), lambda y: (y * b).log(), (x,))


def evaluated(*, positive, context):
    """The output and its gradients."""
    x, *weights = (start.clone().requires_grad_() for start in (X, TWOS, TWOS))
    with context:
        output = model(x, weights, positive=positive)
    return [output.detach(), *torch.autograd.grad(output, [x, *weights], torch.ones_like(output), allow_unused=True)]


@newer_torch
@pytest.mark.parametrize("positive", [True, False])
def test_a_branch_gives_what_torch_gives_and_zeros_for_what_only_the_other_uses(positive):
    ours = evaluated(positive=positive, context=widen())
    torch.testing.assert_close(ours, evaluated(positive=positive, context=torch.enable_grad()), equal_nan=True)
    assert not ours[3 if positive else 2].count_nonzero()


def test_a_mode_sees_the_ops_of_a_branch():
    with widen(), KinkWatch() as watch:
        model(X.clone().requires_grad_(), (X, X), positive=True)
        assert torch.equal(
            torch.cond(True, lambda y: y + 1, lambda y: y - 1, (X,)), X + 1
        )  # without a tensor of its own
    assert watch.kinked


# Grouped matrix products in float64 are those of torch's kernel.
ENDS = torch.tensor([16, 16, 48], dtype=torch.int32)
SHAPES = {  # the first group has 16 rows or columns, the second none, the third 32
    "rows": ((48, 16), (3, 16, 24), ENDS),
    "columns": ((3, 16, 8), (8, 48), ENDS),
    "inner": ((16, 48), (48, 24), ENDS),
    "batch": ((3, 16, 8), (3, 8, 24), None),
}


@newer_torch
@pytest.mark.parametrize("name", SHAPES)
def test_the_products_of_the_groups_are_those_of_the_kernel(name):
    shape_a, shape_b, ends = SHAPES[name]
    a, b = torch.randn(shape_a), torch.randn(shape_b)
    found = grouped_mm(a.double(), b.double(), ends)
    try:
        wanted = FUNCTIONS[0](a.bfloat16(), b.bfloat16(), offs=ends)
    except NotImplementedError as problem:  # some versions have it on CUDA alone
        pytest.skip(f"this torch has no kernel for it: {problem}")
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted.double(), rtol=0.05, atol=0.3)


@newer_torch
def test_a_mixture_of_experts_runs_and_is_differentiated_in_float64():
    x = torch.randn(48, 16, dtype=torch.float64, requires_grad=True)
    experts = torch.randn(3, 16, 24, dtype=torch.float64, requires_grad=True)
    with widen():
        found = FUNCTIONS[-1](x, experts, offs=ENDS)
    cotangent = torch.randn(48, 24, dtype=torch.float64)
    gradients = torch.autograd.grad(found, (x, experts), cotangent)
    wanted = torch.cat([x[:16] @ experts[0], x[16:] @ experts[2]])
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted, (x, experts), cotangent))


# From one seed, the oracle draws the numbers that float32 draws.

WAYS = {
    "rand": lambda f, _: torch.rand(5, 4, dtype=f),
    "rand of the default": lambda f, _: torch.rand(20).to(f),
    "randn": lambda f, _: torch.randn(5, 4, dtype=f),
    "randn of a generator": lambda f, g: torch.randn(20, dtype=f, generator=g),
    "complex": lambda f, _: torch.randn(20, dtype=f.to_complex()),
    "rand_like": lambda f, _: torch.rand_like(torch.empty(4, 5, dtype=f)),
    "randn_like of a transposed tensor": lambda f, _: torch.randn_like(torch.empty(4, 5, dtype=f).t()),
    "uniform_": lambda f, g: torch.empty(20, dtype=f).uniform_(-1, 3, generator=g),
    "normal_ of every other": lambda f, _: torch.zeros(40, dtype=f)[::2].normal_(1.0, 2.0),
    "bernoulli": lambda f, _: torch.bernoulli(torch.full((20,), 0.3, dtype=f)),
    "bernoulli_": lambda f, _: torch.empty(20, dtype=f).bernoulli_(0.3),
    "bernoulli_ of tensors": lambda f, _: torch.empty(20, dtype=f).bernoulli_(torch.full((20,), 0.3, dtype=f)),
    "normal of two tensors": lambda f, _: torch.normal(torch.ones(5, 1, dtype=f), torch.full((4,), 2.0, dtype=f)),
    "normal of a mean": lambda f, g: torch.normal(torch.ones(20, dtype=f), generator=g),
    "normal of a deviation": lambda f, _: torch.normal(1.0, torch.full((20,), 2.0, dtype=f)),
    "normal of a size": lambda f, _: torch.normal(1.0, 2.0, (5, 4)).to(f),
    "exponential_": lambda f, _: torch.empty(20, dtype=f).exponential_(),
    "exponential_ at a rate": lambda f, _: torch.empty(20, dtype=f).exponential_(0.25),
    "dropout": lambda f, _: torch.dropout(torch.ones(20, dtype=f), 0.3, train=True),
    "multinomial": lambda f, _: torch.multinomial(torch.ones(20, dtype=f), 5),
    "randint": lambda f, _: torch.randint(1000, (20,), dtype=f),
}


def drawn(way, dtype):
    """What a way draws from one seed if this is the default dtype, and the state of the generator after it."""
    torch.manual_seed(0)
    with keep_switches():
        torch.set_default_dtype(dtype)
        return WAYS[way](dtype, torch.default_generator), torch.get_rng_state()


@pytest.mark.parametrize("way", WAYS)
def test_numbers_and_generator_are_those_of_float32(way):
    narrow, after_narrow = drawn(way, torch.float32)
    with replacements.NarrowDraws():
        wide, after_wide = drawn(way, torch.float64)
    torch.testing.assert_close(wide, narrow, rtol=2e-7, atol=2e-7, check_dtype=False)
    assert wide.stride() == narrow.stride()
    assert wide.dtype in (torch.float64, torch.complex128, torch.int64)
    assert torch.equal(after_wide, after_narrow)


@pytest.mark.parametrize("way", ["rand", "randn", "complex", "uniform_", "normal of a size"])
def test_without_it_float64_draws_others(way):
    (narrow, _), (wide, _) = drawn(way, torch.float32), drawn(way, torch.float64)
    assert not torch.allclose(wide.to(narrow.dtype), narrow)


def test_only_the_target_is_written():
    whole = torch.zeros(4, dtype=torch.float64)
    with replacements.NarrowDraws():
        assert whole[1:3].uniform_(1, 2).data_ptr() == whole[1:].data_ptr()
    assert whole[[0, 3]].eq(0).all()
    assert whole[1:3].ge(1).all()


# Which calls of TorchScript are noted.


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2

    @torch.jit.export
    def halved(self, x):
        return x / 2


def doubled(x):
    return x * 2


def compiled(x):
    return torch.compile(torch.jit.script(doubled), backend="eager")(x)


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "noted"),
    [
        (torch.jit.script(doubled), True),
        (torch.jit.trace(doubled, ONES), True),
        (torch.jit.script(Doubling()), True),
        (torch.jit.script(Doubling()).halved, True),
        (torch.jit.freeze(torch.jit.script(Doubling().eval())), True),
        (torch.jit.trace(Doubling(), ONES), True),
        (compiled, False),
        (Doubling(), False),
        (doubled, False),
    ],
)
def test_a_call_of_a_script_is_noted(call, noted):
    with replacements.note_scripts() as scripts:
        call(ONES)
    assert bool(scripts) is noted
    with replacements.note_scripts() as scripts:
        pass
    call(ONES)
    assert not scripts

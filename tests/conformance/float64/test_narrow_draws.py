"""From one seed, the oracle draws the numbers that float32 draws."""

import pytest
import torch
from torch import nn

from conformance.float64 import graphs
from conformance.float64.replacements import NarrowDraws

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
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        result = WAYS[way](dtype, torch.default_generator)
    finally:
        torch.set_default_dtype(default)
    return result, torch.get_rng_state()


@pytest.mark.parametrize("way", WAYS)
def test_numbers_and_generator_are_those_of_float32(way):
    narrow, after_narrow = drawn(way, torch.float32)
    with NarrowDraws():
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
    with NarrowDraws():
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


X = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "noted"),
    [
        (torch.jit.script(doubled), True),
        (torch.jit.trace(doubled, X), True),
        (torch.jit.script(Doubling()), True),
        (torch.jit.script(Doubling()).halved, True),
        (torch.jit.freeze(torch.jit.script(Doubling().eval())), True),
        (torch.jit.trace(Doubling(), X), True),
        (compiled, False),
        (Doubling(), False),
        (doubled, False),
    ],
)
def test_a_call_of_a_script_is_noted(call, noted):
    with graphs.note_scripts() as scripts:
        call(X)
    assert bool(scripts) is noted
    with graphs.note_scripts() as scripts:
        pass
    call(X)
    assert not scripts

"""The noise of a run: uniform and independent, and uncorrelated where its numbers are used again."""

import pytest
import torch

from conformance.axes import PRECISIONS
from conformance.oracle import noise
from conformance.oracle.blocks import BLOCK, any_by_blocks, by_blocks
from conformance.oracle.inputs import seeded
from conformance.oracle.nearest import Nearest
from conformance.oracle.noise import POOL, Noise
from conformance.oracle.rounding import Rounding

LARGE = 2 * BLOCK + 17


def factors(count, *, run=0, down=0.25, up=0.25):
    """As many factors as a tensor takes that has no room in one block."""
    source = Noise(seeded("test", run))
    return torch.cat([source.factors(min(BLOCK, count - i), down, up) for i in range(0, count, BLOCK)])


@pytest.mark.parametrize("count", [100, POOL // 2, 3 * POOL])
def test_factors_are_uniform_within_their_range(count):
    found = factors(count, down=0.5, up=0.25)
    assert found.dtype == torch.float64
    assert 0.5 <= float(found.min()) < 0.6
    assert 1.2 < float(found.max()) <= 1.25
    assert float(found.var()) == pytest.approx(0.75**2 / 12, rel=0.3 if count == 100 else 0.02)


def test_a_run_repeats_its_numbers_and_another_has_its_own():
    one, again, other = (factors(3 * POOL, run=run) for run in (1, 1, 2))
    assert torch.equal(one, again)
    assert not (one == other).any()


def test_numbers_are_fresh_while_the_pool_lasts():
    assert len(factors(POOL).unique()) == POOL


def test_the_sum_over_a_large_tensor_varies_as_with_fresh_numbers(monkeypatch):
    """If windows were correlated, sums over many times the pool would vary more, or not at all."""
    monkeypatch.setattr(noise, "POOL", 64)
    sums = []
    for run in range(800):
        source = Noise(seeded("sum", run))
        sums.append(sum(float((source.factors(24, 1.0, 1.0) - 1.0).sum()) for _ in range(60)))
    found = torch.tensor(sums).square().mean()
    assert float(found) == pytest.approx(60 * 24 / 3, rel=0.25)  # five standard deviations of the estimate


LAYOUTS = {
    "contiguous": lambda x: x,
    "small": lambda x: x[:5],
    "one number": lambda x: x[0],
    "transposed": lambda x: x.view(7, -1).t(),
    "channels last": lambda x: x.view(1, 7, -1, 3).to(memory_format=torch.channels_last),
    "with gaps": lambda x: x.view(7, -1)[:, ::2],
    "expanded": lambda x: x[: BLOCK // 4].expand(9, -1),
    "empty": lambda x: x[:0],
    "complex": lambda x: torch.complex(x, x + 1.0),
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def tensor(request):
    x = torch.arange(3 * 7 * (BLOCK // 7), dtype=torch.float64) + 1.0
    return request.param(x)


def test_blocks_give_what_the_whole_gives_and_leave_the_operand_alone(tensor):
    kept = tensor.clone()
    found = by_blocks(lambda part: part * 2.0, tensor, owned=False)
    assert found.shape == tensor.shape
    assert torch.equal(found, kept * 2.0)
    assert torch.equal(tensor, kept)
    assert found.stride() == torch.empty_like(tensor).stride()  # what an op on the whole tensor gives


def test_an_owned_tensor_may_be_written():
    x = torch.ones(LARGE, dtype=torch.float64)
    assert by_blocks(lambda part: part * 2.0, x, owned=True) is x
    assert bool((x == 2.0).all())


def test_a_test_finds_one_element_in_any_block(tensor):
    assert not any_by_blocks(lambda part: part == -1.0, tensor)
    for place in (0, -1) if tensor.numel() else ():
        changed = tensor.contiguous().clone()
        changed.view(-1)[place] = -1.0
        assert any_by_blocks(lambda part: part == -1.0, changed)


@pytest.mark.parametrize(
    "mode",
    [lambda: Rounding(PRECISIONS["amp_fp16"], seeded("large")), lambda: Nearest(PRECISIONS["amp_fp16"])],
    ids=["perturbed", "rounded"],
)
def test_large_operands_are_never_written(mode):
    x = torch.linspace(-1.0, 1.0, LARGE, dtype=torch.float64).view(1, -1)
    kept, written = x.clone(), x.clone()
    with mode():
        x.exp()
        x.t() @ torch.full((1, 1), 0.3, dtype=torch.float64)
        written.mul_(1.7)
    assert torch.equal(x, kept)
    assert not torch.equal(written, kept)


def test_a_result_in_the_memory_of_an_operand_is_copied():
    """An operator that returns its input breaks torch's rules, but must not lose the input."""
    with torch.library._scoped_library("conformance_noise", "DEF") as library:
        library.define("itself(Tensor x) -> Tensor")
        library.impl("itself", lambda x: x.view(x.shape), "CompositeExplicitAutograd")
        x = torch.rand(LARGE, dtype=torch.float64)
        kept = x.clone()
        with Rounding(PRECISIONS["fp32"], seeded("itself")):
            found = torch.ops.conformance_noise.itself.default(x)
    assert torch.equal(x, kept)
    assert not torch.equal(found, x)

"""The noise of perturbed runs: its range, its strides, and that of large tensors from the pool."""

import pytest
import torch

from conformance.evaluate.inputs import seed_generator
from conformance.perturb import rounding

ETA = 2.0**-10


@pytest.fixture(params=[1000, rounding.LARGE, rounding.WINDOW + 12345], ids=["small", "pool", "two windows"])
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_factors_are_uniform_between_their_ends(count: int) -> None:
    found = rounding.perturb(torch.ones(count, dtype=torch.float64), 2 * ETA, ETA, seed_generator("run")) - 1.0
    assert -2 * ETA <= found.amin() < -1.95 * ETA
    assert 0.95 * ETA < found.amax() <= ETA
    assert abs(float(found.mean()) + ETA / 2) < 4 * 1.5 * ETA / (3 * count) ** 0.5
    assert float(found.std()) == pytest.approx(1.5 * ETA / 3**0.5, rel=0.05)


def test_infinities_and_zeros_stay(count: int) -> None:
    special = torch.tensor([torch.inf, -torch.inf, 0.0], dtype=torch.float64).repeat(count // 3 + 1)
    assert torch.equal(rounding.perturb(special, ETA, ETA, seed_generator("run")), special)


def test_two_runs_differ_and_one_seed_repeats_itself(count: int) -> None:
    ones = torch.ones(count, dtype=torch.float64)
    first, again, other = (rounding.perturb(ones, ETA, ETA, seed_generator(word)) for word in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert (first != other).double().mean() > 0.99


def test_no_number_comes_twice_within_a_window() -> None:
    found = rounding.perturb(torch.ones(rounding.WINDOW, dtype=torch.float64), ETA, ETA, seed_generator("run"))
    half = rounding.WINDOW // 2
    assert abs(float(torch.dot(found[:half] - 1.0, found[half:] - 1.0))) < 5 * ETA**2 / 3 * half**0.5


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.T,
        lambda t: t[:, ::2],
        lambda t: t[:1].expand(700, 700),
        lambda t: t.view(10, 70, 7, 100).permute(0, 3, 1, 2),
    ],
    ids=["contiguous", "transposed", "gaps", "expanded", "channels last"],
)
def test_the_result_has_the_strides_of_a_dense_tensor(view) -> None:
    tensor = view(torch.randn(700, 700, dtype=torch.float64))
    assert tensor.numel() >= rounding.LARGE
    found = rounding.perturb(tensor, ETA, ETA, seed_generator("run"))
    assert found.stride() == torch.empty_like(tensor).stride()
    ratio = found / tensor - 1.0
    assert ratio.abs().amax() <= ETA * (1.0 + 1e-9)
    assert ratio.std() == pytest.approx(ETA / 3**0.5, rel=0.05)
    assert abs(torch.corrcoef(ratio.reshape(700, -1))[0, 1]) < 0.3


def test_complex_numbers_get_one_factor_for_both_parts() -> None:
    tensor = torch.randn(rounding.LARGE, dtype=torch.complex128)
    ratio = rounding.perturb(tensor, ETA, ETA, seed_generator("run")) / tensor
    assert ratio.imag.abs().amax() < 1e-12
    assert 0.9 * ETA < (ratio.real - 1.0).abs().amax() <= ETA * (1.0 + 1e-9)


def test_the_pool_is_not_written(count: int) -> None:
    before = rounding.uniform(torch.Size([rounding.LARGE]), seed_generator("run")).clone()
    rounding.perturb(torch.ones(count, dtype=torch.float64), ETA, ETA, seed_generator("other")).zero_()
    rounding.uniform(torch.Size([count]), seed_generator("other")).mul_(0.0)
    assert torch.equal(rounding.uniform(torch.Size([rounding.LARGE]), seed_generator("run")), before)

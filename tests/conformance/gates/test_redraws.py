"""Over many draws, roundings average out, and a wrong factor or constant does not."""

import math
from dataclasses import replace

import pytest
import torch

from conformance.axes import PRECISIONS
from conformance.gates.budget import OverDraws, TensorReference, budgets_over_draws
from conformance.gates.distance import (
    SAMPLE,
    Distance,
    OracleTensor,
    Redraws,
    Sums,
    parts,
    rounded_sums,
    sample,
    sums_of,
)

BFLOAT16 = PRECISIONS["amp_bf16"]
DRAWS = 16


def rounded(tensor):
    return tensor.bfloat16().double()


@pytest.fixture
def truths():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 6, generator=generator, dtype=torch.float64) for _ in range(DRAWS)]


def judged_over(truths, share):
    """The reference of a tensor in many draws, whose perturbed runs moved it by that share of its size."""
    oracle, none = OracleTensor(truths[0]), torch.zeros(len(parts(truths[0])))
    far = Distance(share * oracle.norm, tuple(share * norms for norms in oracle.slice_norms), share, share)
    runs = rounded_sums([rounded(t) for t in truths], truths)
    redraws = Redraws(tuple(t.float() for t in truths), {"amp_bf16": runs})
    spread, strayed = {"fp32": far, "amp_bf16": far}, {"amp_bf16": Sums(none, none)}
    return TensorReference(oracle, spread, False, {}, False, 1.0, strayed, redraws)


@pytest.fixture
def reference(truths):
    return judged_over(truths, 1e-4)


def margin(found, reference):
    return max(m.margin for m in OverDraws(reference, BFLOAT16).measures(found))


def test_honest_rounding_is_far_from_its_budget(truths, reference):
    assert margin([rounded(t * (1 + 2.0**-12)) for t in truths], reference) < 0.8


@pytest.mark.parametrize("factor", [0.95, 0.99, 1.01, 1.05])
def test_a_small_factor_is_red(truths, reference, factor):
    whole, _ = OverDraws(reference, BFLOAT16).measures([rounded(t * factor) for t in truths])
    assert not whole.met
    assert whole.value == pytest.approx(abs(factor - 1), rel=0.1)


def test_a_wrong_slice_is_named(truths, reference):
    damaged = with_row_3(truths, lambda t: 1.1 * t[3])
    _, worst = OverDraws(reference, BFLOAT16).measures([rounded(t) for t in damaged])
    assert not worst.met
    assert "gain of slice 3 of axis 0, over 16 draws" in worst.detail


def test_a_constant_is_red_though_it_has_no_gain(truths, reference):
    _, worst = OverDraws(reference, BFLOAT16).measures([t + 0.01 for t in truths])
    assert not worst.met
    assert "mean error" in worst.detail


def with_row_3(truths, row):
    return [torch.cat([t[:3], row(t)[None], t[4:]]) for t in truths]


def noise(truth):
    return 1e-17 * truth[3]


def with_strays(truths):
    """The reference, with perturbed float32 runs that stray by 1e-7 in every row."""
    spread = Distance(1e-6, (torch.full((8,), 1e-7), torch.full((6,), 1e-6)), 1e-7, 1e-7)
    return replace(judged_over(truths, 0.0), spread={"fp32": spread, "amp_bf16": spread})


@pytest.mark.parametrize("found", [lambda t: 0 * t[3], lambda t: 1e-6 * t[3]], ids=["zeros", "noise"])
def test_a_slice_that_is_noise_in_float64_too_is_not_judged_over_draws(truths, found):
    noisy = with_row_3(truths, noise)
    judged = with_strays(noisy)
    assert margin(with_row_3([rounded(t) for t in noisy], found), judged) < 0.8
    assert margin([rounded(t * 1.05) for t in noisy], judged) > 1  # the others are


def test_a_slice_that_is_noise_in_the_first_draw_alone_is_judged(truths):
    lively = [*with_row_3(truths[:1], noise), *truths[1:]]
    judged = with_strays(lively)
    assert margin([rounded(t) for t in lively], judged) < 0.8
    _, worst = OverDraws(judged, BFLOAT16).measures(with_row_3([rounded(t) for t in lively], lambda t: 1.2 * t[3]))
    assert not worst.met
    assert "slice 3 of axis 0" in worst.detail


@pytest.mark.parametrize("damage", [lambda t: t * torch.nan, lambda t: t[:-1]])
def test_a_draw_without_numbers_or_of_another_shape_is_red(truths, reference, damage):
    found = [*truths[:-1], damage(truths[-1])]
    assert any(not m.met for m in OverDraws(reference, BFLOAT16).measures(found))


def test_where_a_rounded_run_has_no_number_there_is_no_budget(truths, reference):
    lost = [truths[0].clone().index_fill_(0, torch.tensor([3]), torch.nan), *map(rounded, truths[1:])]
    runs = rounded_sums(lost, truths)
    found = budgets_over_draws(reference, BFLOAT16, runs)
    assert not found.gain.isnan().any()
    assert math.isinf(found.gain[0])
    judged = replace(reference, redraws=replace(reference.redraws, rounded={BFLOAT16.name: runs}))
    assert all(m.met for m in OverDraws(judged, BFLOAT16).measures(truths))
    nan = [*truths[:-1], truths[-1] * torch.nan]
    assert not all(m.met for m in OverDraws(judged, BFLOAT16).measures(nan))


def test_a_tensor_of_one_number_is_judged_too():
    truths = [torch.tensor(1.0 + n, dtype=torch.float64) for n in range(DRAWS)]
    assert rounded_sums([1.01 * t for t in truths], truths).strays == pytest.approx([0.01] * DRAWS)


def test_noise_grows_like_the_root_of_the_number_of_draws(truths):
    few = rounded_sums([rounded(t) for t in truths[:4]], truths[:4])
    many = few.over(DRAWS)
    assert torch.allclose(many.squares, 4 * few.squares)
    assert torch.allclose(many.noise.shift, 2 * few.noise.shift)
    assert torch.allclose(many.bias.shift, 4 * few.bias.shift)


def test_a_constant_that_rounds_alike_in_every_draw_is_allowed_for(truths):
    runs = rounded_sums(truths, truths, 0.002)  # as if a norm had divided it out
    assert torch.allclose(runs.bias.gain, 0.002 * runs.squares)
    assert torch.allclose(runs.bias.shift, 0.002 * parts(sum(truths)).abs())


def test_a_slice_has_the_bias_of_its_tensor_that_its_own_noise_hides(truths):
    generator = torch.Generator().manual_seed(3)
    found = [0.95 * t + 0.2 * torch.randn(t.shape, generator=generator) for t in truths[:4]]
    runs = rounded_sums(found, truths[:4])
    whole = runs.bias.gain[0] / runs.squares[0]
    assert 0.01 < whole < 0.1
    assert bool((runs.bias.gain[1:] >= whole * runs.squares[1:]).all())
    exact = rounded_sums(truths[:4], truths[:4])
    assert not exact.bias.gain.count_nonzero()


def test_a_draw_that_makes_up_most_of_the_sums_averages_less(truths):
    large = [*truths[:-1], 10 * truths[-1]]
    even, crowded = (rounded_sums([rounded(t) for t in some], some) for some in (truths, large))
    more = (crowded.noise.gain / crowded.squares) / (even.noise.gain / even.squares)
    assert more[0] > 2
    assert (more > 1).all()


@pytest.mark.parametrize(
    ("factor", "strays", "kinked", "share", "red"),
    [
        (1.07, 1, True, 0.05, False),
        (0.93, 1, True, 0.05, False),
        (1.3, 1, True, 0.05, True),
        (1.07, 1, False, 0.05, True),
        (1.07, 2, False, 0.05, False),
        (1.4, 16, False, 0.05, False),
        (9.0, 16, False, 0.05, True),
        (9.0, 1, False, 0.4, False),
        (50.0, 400, False, 0.05, False),
        (math.nan, 400, True, 0.4, True),
    ],
)
def test_one_draw_may_stray_behind_a_kink_with_its_rounded_run_or_in_large_noise(factor, strays, kinked, share, red):
    generator = torch.Generator().manual_seed(0)
    truths = [torch.randn(8, 400, generator=generator, dtype=torch.float64) for _ in range(DRAWS)]
    truths[9] *= 3
    found = [rounded(t) for t in truths]
    found[9] = with_row_3([found[9]], lambda t: factor * t[3])[0]
    judged = judged_over(truths, share)
    runs = judged.redraws.rounded["amp_bf16"]
    farther = torch.ones(DRAWS).index_fill(0, torch.tensor([9]), strays)
    runs = replace(runs, strays=runs.strays.median() * farther)
    judged = replace(judged, redraws=replace(judged.redraws, rounded={"amp_bf16": runs}), kinked=kinked)
    assert (margin(found, judged) < 1) is not red


def test_parts_are_the_sum_of_all_and_of_every_slice():
    tensor = torch.arange(6.0).reshape(2, 3)
    assert parts(tensor).tolist() == [15.0, 3.0, 12.0, 3.0, 5.0, 7.0]
    assert parts(torch.ones(4)).tolist() == [4.0]


@pytest.mark.parametrize(
    ("size", "found", "shift"),  # float16 ends at 65 504
    [(12_000.0, 12_016.0, 16.0), (20_000.0, 20_016.0, 0.0), (60_000.0, torch.inf, 0.0)],
)
def test_sums_hold_numbers_up_to_a_quarter_of_the_largest(size, found, shift):
    truth = torch.tensor([1.0, size], dtype=torch.float64)
    sums = sums_of([torch.tensor([1.0, found], dtype=torch.float16)], [truth])
    assert (sums.shift.tolist(), sums.gain.tolist()) == ([shift], [shift * size])


def test_a_tensor_is_whole_up_to_16384_elements():
    assert sample(torch.ones(3, dtype=torch.complex64)).shape == (3, 2)
    large = torch.arange(3.0 * SAMPLE).reshape(3, -1)
    assert sample(large).tolist() == large.flatten()[::3].tolist()
    assert [sample(torch.ones(count)).numel() for count in (16_384, 16_386)] == [16_384, 8193]


def test_the_factors_over_draws_are_those_of_the_page(reference):
    """Of docs/method.md, "Many draws": each is what one term adds where the others are nothing."""
    runs, none, oracle = reference.redraws.rounded["amp_bf16"], Sums(torch.zeros(15), torch.zeros(15)), reference.oracle
    first, counts = parts(oracle.values.square()), parts(torch.ones(8, 6))

    def allowed(strayed=none, share=0.0, **sums):
        spread = {**reference.spread, "amp_bf16": replace(reference.spread["amp_bf16"], absolute=share * oracle.norm)}
        judged = replace(reference, spread=spread, strayed={"amp_bf16": strayed})
        return budgets_over_draws(judged, BFLOAT16, replace(runs, **{"bias": none, "noise": none, **sums}))

    some = Sums(runs.squares, runs.squares.sqrt())
    strays = Sums(some.gain * runs.crowding / first, some.shift * (runs.squares / first).sqrt())
    errors = Sums(0.1 * runs.crowding / counts.sqrt(), 0.1 * runs.squares.sqrt())
    for found, factor, term in (
        (allowed(bias=some), 2, some),
        (allowed(noise=some), 5, some),
        (allowed(strayed=some), 5 * 0.4, strays),
        (allowed(share=0.1), 5 * 0.8, errors),
    ):
        torch.testing.assert_close(found.gain - allowed().gain, factor * term.gain, check_dtype=False)
        torch.testing.assert_close(found.shift - allowed().shift, factor * term.shift, check_dtype=False)

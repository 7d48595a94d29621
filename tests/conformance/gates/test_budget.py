"""What a tensor may stray, from how far the perturbed runs did: which damage each budget lets pass and which not."""

import math
from dataclasses import replace

import pytest
import torch
from harness.references import reference_of

from conformance.axes import PRECISIONS
from conformance.gates import budget
from conformance.gates.budget import Budget, TensorReference, budget_for
from conformance.gates.distance import OracleTensor

FP32, FP16, BF16 = (PRECISIONS[name] for name in ("fp32", "amp_fp16", "amp_bf16"))


def rejecting(y, reference, precision, baseline=None):
    """The gates that reject a tensor."""
    beside = None if baseline is None else reference.oracle.distance(baseline)
    allowed = budget_for(reference, precision, beside)
    return {m.gate for m in budget.measures(reference.oracle.distance(y), reference.oracle, allowed) if not m.met}


def with_strayed_rows(reference, strayed):
    """A reference whose perturbed runs in bfloat16 moved some rows by so much: norms by row."""
    far = reference.spread["amp_bf16"]
    rows = far.slices[0].clone()
    for row, norm in strayed.items():
        rows[row] = float(norm)
    moved = replace(far, slices=(rows, *far.slices[1:]))
    return replace(reference, spread={**reference.spread, "amp_bf16": moved})


@pytest.fixture
def oracle():
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("precision", "dtype"), [(FP32, torch.float32), (FP16, torch.half), (BF16, torch.bfloat16)])
def test_rounding_once_passes_with_room(oracle, precision, dtype):
    reference = reference_of(oracle)
    allowed = budget_for(reference, precision)
    far = reference.oracle.distance(oracle.to(dtype))
    assert max(m.margin for m in budget.measures(far, reference.oracle, allowed)) < 0.5


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize(
    "damage",
    [
        torch.zeros_like,
        torch.neg,
        lambda y: 1.25 * y,
        lambda y: y.roll(1, 0),
        lambda y: y.t(),
        lambda y: y + y.std(),
        lambda y: y.index_fill(0, torch.tensor(3), 0.0),
        lambda y: y.index_fill(1, torch.tensor(0), 0.0),
    ],
)
def test_gross_damage_passes_at_no_precision(oracle, damage, precision):
    assert rejecting(damage(oracle), reference_of(oracle), precision)


def test_a_factor_of_two_roundoffs_is_seen_by_gain_alone(oracle):
    assert rejecting(oracle * (1 + 5.0 * FP32.unit), reference_of(oracle, 1.0), FP32) >= {"gain"}
    for low in (FP16, BF16):
        assert rejecting(oracle * (1 + 2.0 * low.unit), reference_of(oracle), low) == {"gain"}


def test_a_budget_of_a_low_precision_lets_its_own_rounding_pass_and_float32_does_not(oracle):
    reference = reference_of(oracle)
    assert rejecting(oracle.to(torch.bfloat16), reference, BF16) == set()
    assert rejecting(oracle.to(torch.bfloat16) * 1.01, reference, FP16) >= {"norm", "gain"}
    assert rejecting(oracle.to(torch.bfloat16), reference, FP32) == {"norm", "slice", "gain", "pointwise"}


@pytest.mark.parametrize(("size", "allowed"), [(0.9, False), (1.1, True)])
def test_twice_as_far_as_the_perturbed_runs_is_allowed_of_a_tensor_that_is_all_noise(oracle, size, allowed):
    noise = torch.randn(32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    noise *= size * oracle.norm() / noise.norm()
    reference = reference_of(oracle)
    far = reference.oracle.distance(oracle + noise)
    moved = replace(reference, spread={**reference.spread, "amp_bf16": far})
    assert ("norm" not in rejecting(oracle + 2 * noise, moved, BF16)) == allowed
    assert rejecting(oracle + 5 * noise, moved, BF16)


def test_a_worse_eager_excuses_as_much_and_a_better_one_takes_nothing(oracle):
    reference = reference_of(oracle)
    poor = oracle * (1 + 64 * FP32.unit)
    assert rejecting(poor, reference, FP32) != set()
    assert rejecting(poor, reference, FP32, baseline=poor) == set()
    assert rejecting(oracle * (1 + 256 * FP32.unit), reference, FP32, baseline=poor) != set()
    perfect, absent = (budget_for(reference, FP32, b) for b in (reference.oracle.distance(oracle), None))
    assert (perfect.norm, perfect.gain, perfect.point) == (absent.norm, absent.gain, absent.point)
    assert all(map(torch.equal, perfect.slices, absent.slices))


def test_a_structural_zero_is_judged_by_size_alone():
    noise = torch.randn(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 1e-17
    measured = OracleTensor(noise)
    terms = torch.randn(64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    spread = {name: measured.distance(p.unit * terms) for name, p in PRECISIONS.items()}
    reference = TensorReference(measured, spread, exact=False, settled={}, kinked=False, scale=1.0)
    assert reference.is_null
    assert rejecting(torch.zeros(64), reference, FP32) == set()
    assert rejecting(FP32.unit * terms.flip(0), reference, FP32) == set()
    assert rejecting(20 * FP32.unit * terms, reference, FP32) == {"norm"}
    assert rejecting(20 * FP32.unit * terms, reference, BF16) == set()


def test_a_zero_oracle_is_null_and_an_ordinary_one_is_not(oracle):
    assert reference_of(torch.zeros(4, 4, dtype=torch.float64)).is_null
    assert not reference_of(oracle).is_null
    oracle[5] = 0
    assert reference_of(oracle).null_slices(0).nonzero().tolist() == [[5]]


def test_underflow_of_float16_is_allowed_by_its_quantum_and_less_under_a_scale(oracle):
    faint = oracle * 2.0**-22
    flushed = faint.to(torch.float16)
    assert rejecting(flushed, reference_of(faint), FP16) == set()
    assert rejecting(flushed, reference_of(faint, scale=2.0**12), FP16) != set()
    assert rejecting(torch.zeros_like(faint), reference_of(faint, scale=2.0**12), FP16) != set()


def test_past_the_cap_the_angle_is_asked(oracle):
    reference = reference_of(oracle, noise=0.8 / BF16.unit)
    assert budget_for(reference, BF16).norm > budget.NORM_CAP * reference.oracle.norm
    assert rejecting(oracle, reference, BF16) == set()
    assert "gain" in rejecting(torch.zeros_like(oracle), reference, BF16)
    assert "gain" in rejecting(-oracle, reference, BF16)
    assert math.isinf(budget_for(reference_of(oracle), BF16).cosine_gap)


def test_eager_that_reaches_float32_in_a_low_cell_is_known(oracle):
    reference = reference_of(oracle)
    for y, held in ((oracle.float(), True), (oracle.half(), False), (oracle.bfloat16(), False)):
        assert budget.holds_float32(reference.oracle.distance(y), reference, BF16) is held


def test_eager_within_what_a_flipped_unit_did_to_float32_is_not_held_to_float32(oracle):
    half = oracle.half()
    reference = reference_of(oracle, kinked=True)
    far = reference.oracle.distance(oracle + 2.0**-10 * oracle.std())
    assert not budget.holds_float32(reference.oracle.distance(half), reference, BF16)
    flipped = replace(reference, spread={**reference.spread, "fp32": far})
    low = replace(flipped, spread={**flipped.spread, "amp_bf16": replace(far, absolute=64 * far.absolute)})
    assert not budget.holds_float32(reference.oracle.distance(half), low, BF16)
    assert budget.holds_float32(reference.oracle.distance(half), replace(low, kinked=False), BF16)  # nothing flips


def test_zeros_pass_where_perturbed_runs_leave_next_to_nothing_and_nowhere_else(oracle):
    kept = reference_of(oracle, noise=0.8 / BF16.unit)
    underflow = kept.oracle.distance(1e-3 * oracle.flip(0))
    lost = replace(kept, spread={**kept.spread, "amp_bf16": underflow})
    assert rejecting(torch.zeros_like(oracle), lost, BF16) == set()
    assert rejecting(-3 * oracle, lost, BF16) >= {"norm", "gain"}
    assert rejecting(torch.zeros_like(oracle), kept, BF16) >= {"gain"}


def test_behind_a_kink_a_unit_may_be_switched_on_that_no_perturbed_run_did_if_one_did_another(oracle):
    off = torch.tensor([3, 7, 11])
    oracle = oracle.index_fill(0, off, 0.0)
    on = oracle.clone()
    on[11] = 0.1
    kinked = reference_of(oracle, kinked=True)
    assert rejecting(on, kinked, BF16) >= {"slice"}  # no run switched any on
    switched = with_strayed_rows(kinked, {3: (on - oracle)[11].norm()})
    assert "slice" not in rejecting(on, switched, BF16)
    assert rejecting(on, replace(switched, kinked=False), BF16) >= {"slice"}
    assert rejecting(on, switched, FP32) >= {"slice"}


def test_slices_that_are_all_noise_may_stray_as_far_as_any_of_them_and_others_may_not(oracle):
    faint = torch.tensor([3, 7, 11])
    oracle = oracle.index_copy(0, faint, 1e-3 * oracle[faint])
    reference = reference_of(oracle)
    norms = reference.oracle.slice_norms[0]
    noisy = with_strayed_rows(reference, {3: 1.1 * norms[3], 7: 9.0 * norms[7], 11: 0.4 * norms[11]})
    moved = {row: oracle.index_copy(0, torch.tensor([row]), 5.0 * oracle[row : row + 1]) for row in (3, 7, 11)}
    assert "slice" not in rejecting(moved[3], noisy, BF16)  # row 7 strayed by as much
    assert "slice" not in rejecting(moved[7], noisy, BF16)
    assert rejecting(moved[11], noisy, BF16) >= {"slice"}  # it is not all noise
    assert rejecting(moved[3], noisy, FP32) >= {"slice"}
    assert rejecting(oracle.index_copy(0, torch.tensor([3]), 50.0 * oracle[3:4]), noisy, BF16) >= {"slice"}
    assert rejecting(1.5 * oracle, noisy, BF16) >= {"norm"}


def test_a_slice_that_is_structurally_zero_shares_no_noise(oracle):
    oracle = oracle.index_fill(0, torch.tensor(3), 0.0).index_copy(0, torch.tensor([7]), 1e-3 * oracle[7:8])
    reference = reference_of(oracle)
    noisy = with_strayed_rows(reference, {7: 2.0 * reference.oracle.slice_norms[0][7]})
    assert rejecting(oracle.index_copy(0, torch.tensor([3]), oracle[7:8]), noisy, BF16) >= {"slice"}


def budget_of_the_page(reference, precision, eager):
    """The budget of docs/method.md, section 3, apart from underflow, whose share is below a thousandth here."""
    oracle, far, unit = reference.oracle, reference.spread[precision.name], precision.unit
    is_noise, share, beside = far.absolute >= oracle.norm, far.absolute / oracle.norm, eager.absolute / oracle.norm
    of_norm, of_slice, of_gain, of_point = (4, 4, 4, 4) if is_noise else (1.5, 4 if reference.kinked else 2, 2, 2)
    strayed = [rows.max().expand_as(rows) if is_noise else rows for rows in far.slices]
    return Budget(
        max(of_norm * max(far.absolute, unit * oracle.norm), 2 * eager.absolute),
        tuple(
            torch.maximum(
                of_slice * torch.maximum(rows, max(share, unit) * norms), 4 * torch.maximum(own, beside * norms)
            )
            for rows, own, norms in zip(strayed, eager.slices, oracle.slice_norms, strict=True)
        ),
        max(of_gain * far.gain, 4 * 2**-24, 2 * eager.gain),
        max(of_point * max(far.point, unit), 4 * eager.point),
    )


@pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("kinked", [False, True])
@pytest.mark.parametrize("eager", [0.0, 3.0, 30.0])  # roundoffs
@pytest.mark.parametrize("noise", [0.0, 4.0, math.inf])  # roundoffs; or eight times the tensor's size
def test_the_factors_are_those_of_the_page(oracle, precision, kinked, eager, noise):
    reference = reference_of(oracle, noise if math.isfinite(noise) else 8.0 / precision.unit, kinked=kinked)
    beside = reference.oracle.distance(oracle * (1 + eager * precision.unit))
    found, wanted = budget_for(reference, precision, beside), budget_of_the_page(reference, precision, beside)
    underflow = 4 * precision.quantum
    for name in ("norm", "gain", "point"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-3, abs=underflow)
    for one, other in zip(found.slices, wanted.slices, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=0)


def test_a_structural_zero_has_eight_times_the_spread_or_four_times_eagers_error(oracle):
    null = replace(reference_of(oracle), is_remainder=True)
    far = null.spread["amp_bf16"].absolute
    for eager, wanted in ((0.0, 8 * far), (1.9 * far, 8 * far), (3.0 * far, 12 * far)):
        beside = replace(null.spread["amp_bf16"], absolute=eager)
        assert budget_for(null, BF16, beside).norm == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(("times", "is_null"), [(200, False), (300, True)])  # 2³⁰ roundoffs, of 4 · 2⁻²⁴ each, are 256
def test_noise_of_float64_is_structurally_zero(oracle, times, is_null):
    reference = reference_of(oracle)
    norms = reference.oracle.slice_norms
    far = replace(
        reference.spread["fp32"], absolute=times * reference.oracle.norm, slices=tuple(times * n for n in norms)
    )
    noisy = replace(reference, spread={**reference.spread, "fp32": far})
    assert noisy.is_null is is_null
    assert bool(noisy.null_slices(1).all()) is is_null


@pytest.mark.parametrize(("count", "share", "asked"), [(7, 0.6, False), (8, 0.6, True), (8, 0.4, False)])
def test_the_angle_is_asked_of_eight_elements_and_beyond_half_of_the_size(count, share, asked):
    reference = reference_of(torch.ones(count, dtype=torch.float64))
    far = replace(reference.spread["amp_bf16"], absolute=share / 1.5 * reference.oracle.norm, cosine_gap=0.9)
    allowed = budget_for(replace(reference, spread={**reference.spread, "amp_bf16": far}), BF16)
    assert math.isfinite(allowed.cosine_gap) is asked
    assert not asked or allowed.cosine_gap == pytest.approx(2 * 0.9)

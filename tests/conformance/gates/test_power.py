"""The canaries: gates that accept a wrong tensor have no power; what rounding itself hides is no fault of theirs."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from harness.references import criteria_of, exact_reference, reference_of

from conformance.axes import PRECISIONS
from conformance.gates.budget import budget_for
from conformance.gates.compare import Power, accepts, global_canaries, local_canaries, name_of, power_of
from conformance.records.cell import FP32_REDRAWN

FAINT_ROW = "smallest slice 3 of axis 0 zeroed"


@pytest.fixture
def oracle():
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def all_gates(canary, criteria):
    """The judge's own gates, for a candidate that should be float32."""
    return accepts(canary, criteria, "float32")


def power(reference, precision, gates=all_gates, dtype=torch.float32, **fields):
    """What the canaries show, each of them made and tried."""
    criteria = criteria_of(reference, precision, **fields)
    found = power_of(dtype, criteria, gates, unforeseen)
    assert found.rejected or gates is not all_gates
    if gates is all_gates:
        assert power_of(dtype, criteria, gates) == found
    return replace(found, rejected=0)  # so that a test names only what is not rejected


def unforeseen(*_):
    """Nothing is known of a canary before it is made."""


def with_noisy_row(reference, precision, row):
    """The reference, but rounding moves a row of the first axis by its own size."""
    far = reference.spread[precision]
    first = far.slices[0].clone()
    first[row] = reference.oracle.slice_norms[0][row]
    return replace(reference, spread={**reference.spread, precision: replace(far, slices=(first, *far.slices[1:]))})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("part", [slice(None), 0], ids=["matrix", "vector"])
def test_the_gates_reject_every_canary_of_an_ordinary_tensor(oracle, precision, part):
    assert power(reference_of(oracle[part]), precision) == Power()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_the_gates_reject_every_canary_of_an_exact_tensor(dtype):
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    assert power(exact_reference(whole), "amp_bf16", partial(accepts, dtype=name_of(dtype)), dtype) == Power()


def test_gates_that_accept_anything_are_found_out():
    whole = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    found = power(exact_reference(whole), "fp32", lambda *_: True)
    assert {"an extra axis", "one NaN", "the wrong dtype", "zeros", "the negative", "1.25 times"} < set(found.accepted)
    assert "noise of half its size" in found.accepted
    assert "elements in another order" in found.accepted
    assert {"median slice 1 of axis 0 zeroed", "smallest slice 0 of axis 0 zeroed"} < set(found.accepted)
    assert (found.weak, found.left_to) == ((), "")


@pytest.mark.parametrize(
    ("blind", "name"),
    [
        (lambda canary: canary.dim() == 3, "an extra axis"),
        (lambda canary: canary.dtype == torch.float64, "the wrong dtype"),
        (lambda canary: bool(canary.isnan().any()), "one NaN"),
    ],
)
def test_a_gate_that_is_blind_to_one_damage_is_found_out(oracle, blind, name):
    found = power(reference_of(oracle), "fp32", lambda canary, criteria: blind(canary) or all_gates(canary, criteria))
    assert found == Power((name,))


def test_an_empty_tensor_has_no_canaries():
    reference = reference_of(torch.zeros(0, 4, dtype=torch.float64))
    assert power(reference, "fp32", lambda *_: pytest.fail("a canary was made")) == Power()


def test_a_faint_part_in_the_noise_of_a_low_precision_is_weak(oracle):
    oracle[3] *= 2.0**-10
    reference = reference_of(oracle)
    assert power(reference, "amp_bf16") == Power()
    assert power(with_noisy_row(reference, "amp_bf16", 3), "amp_bf16") == Power(weak=(FAINT_ROW,))


def test_a_faint_part_in_the_noise_of_float32_is_weak_where_the_median_part_is_seen(oracle):
    oracle[3] *= 2.0**-24
    reference = with_noisy_row(reference_of(oracle), "fp32", 3)
    assert power(reference, "fp32") == Power(weak=(FAINT_ROW,))
    assert power(with_noisy_row(reference, "amp_bf16", 3), "amp_bf16") == Power(weak=(FAINT_ROW,))


def test_a_faint_part_is_no_excuse_where_no_part_of_its_axis_is_seen(oracle):
    def blind_to_rows(canary, criteria):
        return 0 < int((canary == 0).all(dim=-1).sum()) < len(canary) or all_gates(canary, criteria)

    reference = reference_of(oracle)
    order = oracle.norm(dim=1).argsort().tolist()
    both = tuple(f"{which} slice {order[at]} of axis 0 zeroed" for which, at in (("median", 16), ("smallest", 0)))
    assert power(reference, "fp32", blind_to_rows) == Power(accepted=both)
    assert power(replace(reference, kinked=True), "fp32", blind_to_rows) == Power(weak=both)


def in_common_factor(reference, precision):
    """The reference, but rounding may bring half the tensor's size as a common factor."""
    far = replace(reference.spread[precision], gain=0.5)
    return replace(reference, spread={**reference.spread, precision: far})


def test_a_tensor_that_a_low_precision_cannot_tell_from_a_wrong_one_is_left_to_float32(oracle):
    blurred = in_common_factor(reference_of(oracle, noise=0.4 / PRECISIONS["amp_bf16"].unit), "amp_bf16")
    found = power(blurred, "amp_bf16")
    assert (found.accepted, found.left_to) == ((), "fp32")
    assert power(blurred, "fp32") == Power()
    coarse = replace(blurred, spread=dict.fromkeys(PRECISIONS, blurred.spread["amp_bf16"]))
    for precision in ("amp_bf16", "fp32"):  # float32 cannot tell either
        found = power(coarse, precision)
        assert "1.25 times" in found.accepted
        assert not found.left_to


def test_zeros_that_underflow_blurs_are_left_to_float32():
    """Terms of size one cancel. In float16 they do not, by half of that; float32 sees more than an eighth."""
    noise = 1e-16 * torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    terms = 4.0 * 2.0**-24 * 32**0.5  # how far perturbed float32 runs stray
    reference = reference_of(noise)
    spread = {name: replace(far, absolute=terms) for name, far in reference.spread.items()}
    blurred = replace(reference, spread={**spread, "amp_fp16": replace(spread["amp_fp16"], absolute=0.5 * 32**0.5)})
    assert blurred.is_null
    assert power(replace(blurred, spread=spread), "amp_fp16") == Power()
    assert power(blurred, "amp_fp16") == Power(left_to="fp32")
    assert power(blurred, "fp32") == Power()


def test_the_gradient_of_an_expert_that_only_a_low_precision_chooses_is_zero_in_the_others():
    zeros = reference_of(torch.zeros(4, 8, dtype=torch.float64))
    chosen = replace(zeros.spread["amp_bf16"], absolute=1.1)
    reference = replace(zeros, spread={**zeros.spread, "amp_bf16": chosen})
    assert reference.is_null
    assert power(reference, "fp32") == power(reference, "amp_fp16") == Power()
    assert power(reference, "amp_bf16") == Power(left_to="fp32")
    assert power(zeros, "fp32") == Power()

    def blind_to_numbers(canary, criteria):
        return bool((canary.isfinite() & (canary != 0)).all()) or all_gates(canary, criteria)

    assert power(reference, "fp32", blind_to_numbers) == Power(("numbers in place of zeros",))


def test_zeros_that_pass_where_a_perturbed_run_left_next_to_nothing_are_no_silent_pass(oracle):
    clear = reference_of(oracle)
    nothing = clear.oracle.distance(1e-3 * oracle.flip(0))
    low = replace(clear, spread={**clear.spread, "amp_bf16": nothing})
    found = power(low, "amp_bf16")
    assert (found.accepted, found.left_to) == ((), "fp32")
    everywhere = power(replace(clear, spread=dict.fromkeys(PRECISIONS, nothing)), "fp32")
    assert "zeros" in everywhere.accepted
    assert not everywhere.left_to


def test_a_tensor_that_a_flipped_unit_hides_is_left_to_other_weights_that_tell_it(oracle):
    clear = reference_of(oracle)
    coarse = in_common_factor(reference_of(oracle, noise=0.4 / PRECISIONS["amp_bf16"].unit), "amp_bf16")
    blurred = replace(coarse, spread=dict.fromkeys(PRECISIONS, coarse.spread["amp_bf16"]))
    flipped = replace(blurred, kinked=True)

    def seen(reference, precision, *others):
        criteria = replace(criteria_of(reference, precision), others=lambda: others)
        return power_of(torch.float32, criteria, all_gates)

    for precision in ("fp32", "amp_bf16", "tf32"):
        found = seen(flipped, precision, clear)
        assert (found.accepted, found.left_to) == ((), FP32_REDRAWN)
        for left in (seen(flipped, precision), seen(flipped, precision, blurred), seen(blurred, precision, clear)):
            assert "1.25 times" in left.accepted
            assert not left.left_to


def test_the_damage_of_two_canaries_is_half_of_the_size_and_the_median_of_the_large_elements(oracle):
    reference = reference_of(oracle)
    made = {c.name: c.make(oracle) for c in global_canaries(torch.float64, reference, held_to_float32=True)}
    assert float((made["noise of half its size"] - oracle).norm() / oracle.norm()) == pytest.approx(0.5)
    parts = torch.tensor([0.4, 0.4, 0.4, 0.4, 0.7, 0.8, 2.2], dtype=torch.float64)  # their rms is 0.98
    canaries = local_canaries(reference_of(parts), budget_for(reference_of(parts), PRECISIONS["fp32"]))
    made = {canary.name: canary.make(parts) for canary in canaries}
    assert made["one element zeroed"].tolist() == [0.4, 0.4, 0.4, 0.4, 0.7, 0.0, 2.2]

"""A candidate of a low precision whose numbers are float32's."""

from dataclasses import replace

import pytest
import torch
from harness.references import criteria_of, reference_of

from conformance.axes import PRECISIONS
from conformance.gates import dropped_bits
from conformance.gates.compare import compare, measures_of

BF16 = PRECISIONS["amp_bf16"]


@pytest.fixture
def blurred():
    """A tensor that roundings of bfloat16 may change by half of its size, but not those of float32."""
    oracle = torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reference = reference_of(oracle, noise=0.4 / BF16.unit)
    low = replace(reference.spread["amp_bf16"], gain=0.5)
    return replace(reference_of(oracle), spread={**reference_of(oracle).spread, "amp_bf16": low})


@pytest.mark.parametrize(("error", "left_to"), [(2.0**-24, ""), (2.0**-6, "fp32")])
def test_float32s_numbers_have_passed_gates_with_power_and_others_have_not(blurred, error, left_to):
    noise = torch.rand(32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64) - 0.5
    found = compare((blurred.oracle.raw * (1 + error * noise)).float(), criteria_of(blurred, "amp_bf16"), None, "")
    assert all(measure.met for measure in found.measures)
    assert found.left_to == left_to
    assert found.accepted == ()
    assert found.rejected >= 3


@pytest.mark.parametrize(("share", "is_met"), [(0.89, True), (0.91, False)])
def test_nine_in_ten_elements_that_went_through_bfloat16_are_too_many(share, is_met):
    oracle = torch.randn(10_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y, cut = oracle.float(), int(share * 10_000)
    y[:cut] = y[:cut].bfloat16().float()
    (measure,) = dropped_bits.precision_measure(y, criteria_of(reference_of(oracle), "fp32"))
    assert measure.met is is_met


@pytest.mark.parametrize(
    ("strays", "names"),
    [
        (0.75 * 2**-14, {"float16", "bfloat16"}),
        (1.5 * 2**-14, {"bfloat16"}),
        (0.75 * 2**-11, {"bfloat16"}),
        (1.5 * 2**-11, set()),
    ],
)
def test_low_bits_tell_nothing_where_float32_strays_by_an_eighth_of_them(strays, names):
    reference = reference_of(torch.randn(64, dtype=torch.float64))
    far = replace(reference.spread["fp32"], absolute=strays * reference.oracle.norm)
    criteria = criteria_of(replace(reference, spread={**reference.spread, "fp32": far}), "fp32")
    assert dropped_bits.tested_bits(torch.float32, criteria).keys() & {"float16", "bfloat16"} == names


@pytest.mark.parametrize(("size", "is_met"), [(0.75 * 2**-13, True), (1.4 * 2**-13, False)])
def test_in_float16_numbers_tell_that_are_2048_times_its_smallest(size, is_met):
    oracle = size * (1 + 0.1 * torch.rand(64, dtype=torch.float64))
    (measure,) = dropped_bits.precision_measure(
        oracle.bfloat16().float(), criteria_of(reference_of(oracle), "amp_fp16")
    )
    assert measure.met is is_met


@pytest.mark.parametrize(("error", "closer"), [(1.0, True), (3.0, False)])
def test_a_candidate_is_closer_than_eager_if_its_error_is_smaller(error, closer):
    oracle = torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    criteria = criteria_of(reference_of(oracle), "amp_bf16", baseline=oracle * (1 + 2 * BF16.unit))
    assert compare(oracle * (1 + error * BF16.unit), criteria, None, "").closer is closer


@pytest.mark.parametrize(("size", "is_met"), [(65_500.0, True), (60_000.0, False)])
def test_an_infinity_is_right_where_the_oracle_is_near_the_largest_number(size, is_met):
    oracle = torch.full((64,), size, dtype=torch.float64)
    y = torch.cat([oracle[:63].half(), torch.tensor([torch.inf], dtype=torch.half)])
    (measure,) = (m for m in measures_of(y, criteria_of(reference_of(oracle), "amp_fp16")) if m.gate == "class")
    assert measure.met is is_met

"""What a tensor is held to: which kind it is, whose budget holds, and what eager beside it may excuse."""

import math
from dataclasses import replace

import pytest
import torch
from harness.references import criteria_of, exact_reference, reference_of

from conformance.axes import PRECISIONS
from conformance.gates import dropped_bits
from conformance.gates.budget import FLOAT32, Budget, budget_for
from conformance.gates.compare import accepts, compare, measures_of

NO_BUDGET = Budget(0.0, (), 0.0, 0.0)
LOW = ("amp_fp16", "amp_bf16")


@pytest.fixture
def oracle():
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def same(one, other):
    """Whether two budgets are equal."""
    plain = [(b.norm, b.gain, b.point, b.cosine_gap) for b in (one, other)]
    return plain[0] == plain[1] and all(map(torch.equal, one.slices, other.slices))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_numbers_that_round_have_the_budget_of_the_cells_precision(oracle, precision):
    reference = reference_of(oracle)
    criteria = criteria_of(reference, precision)
    assert criteria.kind == "rounded"
    assert criteria.precision is criteria.cell_precision is PRECISIONS[precision]
    assert same(criteria.budget, budget_for(reference, PRECISIONS[precision]))
    assert criteria.uses_float32_budget is (precision == "fp32")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("empty", reference_of(torch.zeros(0, 4, dtype=torch.float64))),
        ("empty", exact_reference(torch.zeros(0, 4, dtype=torch.int64))),
        ("exact", exact_reference(torch.ones(3, 4, dtype=torch.float64))),
        ("exact", replace(exact_reference(torch.ones(3, 4, dtype=torch.int64)), exact=False)),
        ("exact", replace(exact_reference(torch.ones(3, 4, dtype=torch.bool)), exact=False)),
    ],
    ids=["no element", "no integer", "float that nothing rounds", "integer that changes", "boolean that changes"],
)
def test_what_rounds_nothing_has_no_budget(precision, kind, reference):
    criteria = criteria_of(reference, precision)
    assert (criteria.kind, criteria.budget) == (kind, NO_BUDGET)


@pytest.mark.parametrize("accurate", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_the_size_is_judged_of_a_structural_zero_and_of_what_cancellation_leaves(oracle, precision, accurate):
    null = reference_of(torch.zeros(4, 4, dtype=torch.float64))
    for kind, reference in (("null", null), ("remainder", replace(reference_of(oracle), is_remainder=True))):
        criteria = criteria_of(reference, precision, accurate=accurate)
        assert (criteria.kind, criteria.is_judged_by_size) == (kind, True)
        assert criteria.precision.name == ("fp32" if accurate else precision)
        assert math.isinf(criteria.budget.gain)


@pytest.mark.parametrize("precision", LOW)
def test_a_low_cell_is_held_to_float32_where_the_spec_says_so_or_eager_reaches_it(oracle, precision):
    reference = reference_of(oracle)
    criteria = criteria_of(reference, precision, accurate=True)
    assert (criteria.kind, criteria.precision, criteria.uses_float32_budget) == ("float32", FLOAT32, True)
    assert criteria.cell_precision is PRECISIONS[precision]
    assert same(criteria.budget, budget_for(reference, FLOAT32))
    dtype = getattr(torch, PRECISIONS[precision].autocast)
    assert criteria_of(reference, precision, baseline=oracle.float()).kind == "float32"
    assert criteria_of(reference, precision, baseline=oracle.to(dtype)).kind == "rounded"
    tf32 = criteria_of(reference, "tf32", baseline=oracle.float())  # a kernel may take it though eager did not
    assert (tf32.kind, tf32.precision.name) == ("rounded", "tf32")


def test_eager_within_its_own_budget_widens_that_of_the_other_modes(oracle):
    reference = reference_of(oracle)
    plain = criteria_of(reference, "fp32").budget
    eager = oracle * (1 + 3.0 * FLOAT32.unit)
    beside = criteria_of(reference, "fp32", baseline=eager)
    assert same(beside.budget, budget_for(reference, FLOAT32, reference.oracle.distance(eager)))
    assert beside.budget.norm > plain.norm


def test_eager_that_fails_its_own_budget_or_has_another_shape_excuses_nothing(oracle):
    reference = reference_of(oracle)
    wrong = oracle * (1 + 64 * FLOAT32.unit)
    criteria = criteria_of(reference, "fp32", baseline=wrong)
    assert same(criteria.budget, criteria_of(reference, "fp32").budget)
    assert not accepts(wrong.float(), criteria, "float32")
    shaped = criteria_of(reference, "fp32", baseline=oracle[None])
    assert shaped.baseline is None
    assert same(shaped.budget, criteria_of(reference, "fp32").budget)


def test_the_same_tensor_can_be_held_to_float32(oracle):
    reference = reference_of(oracle)
    low = criteria_of(reference, "amp_bf16", bitwise=False)
    fine = low.at_float32()
    assert (fine.precision, fine.cell_precision) == (FLOAT32, low.cell_precision)
    assert same(fine.budget, budget_for(reference, FLOAT32))
    assert (fine.case, fine.tensor, fine.kind, fine.bitwise) == (low.case, low.tensor, low.kind, False)
    assert accepts(oracle.bfloat16(), low, "bfloat16")
    assert not accepts(oracle.bfloat16(), fine, "bfloat16")


BF16 = PRECISIONS["amp_bf16"]


@pytest.fixture
def blurred(oracle):
    """A tensor that roundings of bfloat16 may change by half of its size, but not those of float32."""
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
def test_a_candidate_is_closer_than_eager_if_its_error_is_smaller(oracle, error, closer):
    criteria = criteria_of(reference_of(oracle), "amp_bf16", baseline=oracle * (1 + 2 * BF16.unit))
    assert compare(oracle * (1 + error * BF16.unit), criteria, None, "").closer is closer


@pytest.mark.parametrize(("size", "is_met"), [(65_500.0, True), (60_000.0, False)])
def test_an_infinity_is_right_where_the_oracle_is_near_the_largest_number(size, is_met):
    oracle = torch.full((64,), size, dtype=torch.float64)
    y = torch.cat([oracle[:63].half(), torch.tensor([torch.inf], dtype=torch.half)])
    (measure,) = (m for m in measures_of(y, criteria_of(reference_of(oracle), "amp_fp16")) if m.gate == "class")
    assert measure.met is is_met

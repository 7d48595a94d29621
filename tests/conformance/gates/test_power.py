"""The canaries: gates that accept a wrong tensor have no power; what rounding itself hides is no fault of theirs."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from harness.references import criteria_of, exact_reference, reference_of

from conformance.axes import PRECISIONS
from conformance.gates import power as gates_power
from conformance.gates.budget import Budget, budget_for
from conformance.gates.compare import accepts, name_of
from conformance.gates.power import Power, foreseen, global_canaries, local_canaries, power_of
from conformance.oracle import reference as references
from conformance.records.observation import OTHER_WEIGHTS
from zoo.catalog import get_spec

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
        assert (found.accepted, found.left_to) == ((), OTHER_WEIGHTS)
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


# What is decided of a canary before it is made is what the gates say of it once it is made.

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = ("fp32", "amp_fp16", "amp_bf16")
NOISES = (0.0, 4.0, 2.0**8, 2.0**16, 2.0**23)  # roundoffs; from "every canary is far" to "no canary is"
SHAPES = ((), (1,), (2,), (300,), (1, 9), (40, 3), (3, 4, 2, 5))


def check(criteria, dtype):
    gates = partial(accepts, dtype=name_of(dtype))
    assert power_of(dtype, criteria, gates) == power_of(dtype, criteria, gates, unforeseen)


def drawn(kind, shape, seed):
    """A tensor as models return them, by the name of its kind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "heavy":
        return x / torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind == "rows of all sizes" and x.dim():
        return x * (2.0 ** -torch.arange(0.0, 8.0 * len(x), 8.0).double()).reshape(-1, *[1] * (x.dim() - 1))
    return {
        "faint": x * 2.0**-20,
        "sparse": x * (x > 1),
        "constant": torch.full_like(x, 0.3),
        "huge": x * 2.0**14,
        "denormal": x * 2.0**-140,
        "infinite": torch.where(x > 1, math.inf, x),
    }.get(kind, x)


@pytest.mark.parametrize("kind", ["normal", "heavy", "rows of all sizes", "faint", "sparse", "constant", "huge"])
@pytest.mark.parametrize("precision", NAMES)
def test_the_same_of_random_tensors(kind, precision):
    for seed, (shape, noise) in enumerate(itertools.product(SHAPES, NOISES)):
        known = reference_of(drawn(kind, shape, seed), noise, kinked=seed % 2 == 0)
        check(criteria_of(known, precision, accurate=seed % 3 == 0), DTYPES[seed % 4])


@pytest.mark.parametrize("kind", ["denormal", "infinite", "sparse"])
@pytest.mark.parametrize("precision", NAMES)
def test_the_same_of_tensors_at_the_edge_of_a_dtype(kind, precision):
    for seed, (shape, dtype) in enumerate(itertools.product(SHAPES, DTYPES)):
        oracle = drawn(kind, shape, seed)
        check(criteria_of(reference_of(oracle), precision), dtype)
        check(criteria_of(exact_reference(oracle), precision), dtype)


@pytest.mark.parametrize("precision", NAMES)
def test_the_same_of_complex_numbers(precision):
    for seed, (shape, noise) in enumerate(itertools.product(SHAPES, NOISES)):
        oracle = torch.complex(drawn("normal", shape, seed), drawn("heavy", shape, seed))
        check(criteria_of(reference_of(oracle, noise), precision), torch.complex64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_the_same_of_numbers_without_rounding(dtype):
    for shape, precision in itertools.product(SHAPES, NAMES):
        whole = (10 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
        known = exact_reference(whole)
        check(criteria_of(known, precision), dtype)
        half = torch.arange(whole.numel()).reshape(shape) % 2 == 0
        check(criteria_of(replace(known, exact=False, settled=dict.fromkeys(NAMES, half)), precision), dtype)


@pytest.mark.parametrize("precision", NAMES)
def test_the_same_where_no_budget_is_known(precision):
    known = reference_of(drawn("normal", (6, 7), 0))
    lost = replace(known, spread=dict.fromkeys(PRECISIONS, known.oracle.without_bound()))
    check(criteria_of(lost, precision), torch.float32)


@pytest.mark.parametrize("model", ["softmax", "clipped_relu"])
def test_the_same_of_models(model):
    names = ("fp32", "amp_bf16")
    cases = references.make(get_spec(model), None, 0, [PRECISIONS[name] for name in names])
    judged = [known for case in cases.values() for known in case.tensors.values() if known is not None]
    assert judged
    for known, precision in itertools.product(judged, names):
        low = PRECISIONS[precision].autocast
        for dtype in {torch.float32, getattr(torch, low or "float32")} if known.oracle.is_rounded else ():
            check(criteria_of(known, precision), dtype)


def test_no_canary_of_an_ordinary_tensor_has_to_be_made():
    for precision in NAMES:
        criteria = criteria_of(reference_of(drawn("normal", (40, 30), 0)), precision)
        power_of(torch.float32, criteria, lambda *_: pytest.fail("a canary was made"))


def test_an_integer_is_always_made():
    criteria = criteria_of(exact_reference(torch.arange(12).reshape(3, 4)), "fp32")
    made_of = []
    power_of(torch.int64, criteria, lambda *_: False, lambda *asked: made_of.append(foreseen(*asked)))
    assert made_of == [False, None, None]  # an extra axis needs no number


@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "constant", "rows of all sizes", "infinite"])
def test_the_first_order_that_moves_a_tensor_far_enough_is_taken(kind, monkeypatch):
    monkeypatch.setattr(gates_power, "BLOCK", 64)
    for seed, dtype in enumerate(DTYPES):
        truth = drawn(kind, (50, 7), seed).to(dtype)
        whole = truth.flatten()
        for flat in (whole, whole.sort().values, whole.sort(descending=True).values):
            orders = [flat.roll(1), flat.flip(0), flat.sort().values]
            gaps = [float((order.double() - flat.double()).norm()) for order in orders]
            for most in (0.0, *(gap * factor for gap in gaps for factor in (0.5, 0.999, 1.001, 1.2, 2.0))):
                wanted = next((o for o, gap in zip(orders, gaps, strict=True) if gap > most), None)
                canary = next(local_canaries(reference_of(flat.double()), Budget(most, (), 0.0, 0.0)))
                found = canary.make(flat)
                assert (found is None) is (wanted is None)
                assert wanted is None or torch.equal(found, wanted)
                assert not canary.least.absolute > (1 + 1e-9) * gaps[0]

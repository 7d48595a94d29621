"""What is decided of a canary before it is made is what the gates say of it once it is made."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from harness.references import criteria_of, exact_reference, reference_of

from conformance.axes import PRECISIONS
from conformance.gates import compare
from conformance.gates.budget import Budget
from conformance.gates.compare import accepts, foreseen, local_canaries, name_of, power_of
from conformance.oracle import reference
from zoo.catalog import get_spec

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NAMES = ("fp32", "amp_fp16", "amp_bf16")
NOISES = (0.0, 4.0, 2.0**8, 2.0**16, 2.0**23)  # roundoffs; from "every canary is far" to "no canary is"
SHAPES = ((), (1,), (2,), (300,), (1, 9), (40, 3), (3, 4, 2, 5))


def check(criteria, dtype):
    gates = partial(accepts, dtype=name_of(dtype))
    assert power_of(dtype, criteria, gates) == power_of(dtype, criteria, gates, lambda *_: None)


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
    cases = reference.make(get_spec(model), None, 0, [PRECISIONS[name] for name in names])
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
    monkeypatch.setattr(compare, "BLOCK", 64)
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
